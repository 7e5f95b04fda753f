-- rw_lock/holders.lua: who holds the name; written in front of each script that has to know.
--
-- KEYS[1] name      hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock); it
--                           lasts as long as its longest hold
-- KEYS[2] timeouts  string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
local call, pcall = redis.call, redis.pcall

-- Redisson's transactions have fields that go on behind it.
local function is_writer(field)
  return string.find(field, ':write$') ~= nil or string.find(field, ':write:', 1, true) ~= nil
end

-- The lease id of ours in a field or a place, <client uuid>:<lease id>.
local function owner_of(field)
  return string.match(field, '^[^:]*:%d+') or field
end

local function timeout_key(reader, i)
  return KEYS[2] .. reader .. ':rwlock_timeout:' .. i
end

-- What is left of a reader's hold: of its lease, of which `own` is left, or of the hash if that ends sooner. -1: without an end.
local function less_of(own, ttl)
  return (own == -1 or ttl ~= -1 and ttl < own) and ttl or own
end

-- The hold of the lease id of `field`, in either of its forms: a writer becomes a reader and never goes back, so requests that name
-- the other form are late, or early. Its field, what is left of it, and `own`: of the key that is its lease. Nil: it holds nothing;
-- and the error, if the name is none of a read-write lock.
local function hold_of(field)
  local owner = owner_of(field)
  local writes = pcall('HEXISTS', KEYS[1], owner .. ':write')
  if type(writes) ~= 'number' then
    return nil, refuse('rw_lock', writes)
  elseif writes == 1 then
    local ttl = call('PTTL', KEYS[1])
    return { field = owner .. ':write', left = ttl, own = ttl }
  elseif call('HEXISTS', KEYS[1], owner) == 1 then
    -- However often it has entered: ours have one lease.
    local own = call('PTTL', timeout_key(owner, 1))
    return own ~= -2 and { field = owner, left = less_of(own, call('PTTL', KEYS[1])), own = own } or nil
  end
end

-- So many leases of a reader are asked for: the server serves no other client meanwhile.
local LEASES_MOST = 1000

-- What is left of a reader's lease: of the longest, where Redisson has one for each time it has entered. Where it has entered more
-- often than is asked for, all that the hash has: none lasts longer. (Ours never has.) -1: without an end; nil: it is over.
local function left_of_reader(reader, count, ttl)
  if count > LEASES_MOST then
    return ttl
  end
  local longest
  for i = 1, count do
    local left = call('PTTL', timeout_key(reader, i))
    if left == -1 then
      return -1
    end
    if left >= 0 and left > (longest or -1) then
      longest = left
    end
  end
  return longest
end

-- All who hold the name:
--   mode   read or write; nil: it is free
--   live   the holders in no order: field, count, left
--   dead   fields of readers whose leases are over; they hold nothing
--   left   how long until all holds are over, if none is extended; -1: without an end
--   other  there is a hash, but not a read-write lock's
-- Or nothing, and the error. It asks for each reader's lease: only for one that must know them all.
local function look()
  local fields = pcall('HGETALL', KEYS[1])
  if fields.err then
    return nil, refuse('rw_lock', fields)
  end
  local found, mode = { live = {}, dead = {}, left = -2 }, nil
  for i = 1, #fields, 2 do
    mode = fields[i] == 'mode' and fields[i + 1] or mode
  end
  if not mode then
    found.other = #fields > 0
    return found
  end
  local writes, ttl = mode ~= 'read', call('PTTL', KEYS[1])
  for i = 1, #fields, 2 do
    local field, count, own = fields[i], tonumber(fields[i + 1]) or 0, nil
    if writes and is_writer(field) then
      own = ttl
    elseif field ~= 'mode' then
      own = left_of_reader(field, count, ttl)
    end
    if own then
      local left = less_of(own, ttl)
      found.live[#found.live + 1] = { field = field, count = count, left = left }
      if found.left ~= -1 and (left == -1 or left > found.left) then
        found.left = left
      end
    elseif field ~= 'mode' then
      found.dead[#found.dead + 1] = field
    end
  end
  if writes then
    found.left = ttl
  end
  if writes or #found.live > 0 then
    found.mode = mode
  end
  return found
end
