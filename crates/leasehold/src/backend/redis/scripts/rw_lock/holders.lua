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

local function timeout_key(reader, i)
  return KEYS[2] .. reader .. ':rwlock_timeout:' .. i
end

-- So many leases of a reader are asked for: the server serves no other client meanwhile.
local LEASES_MOST = 1000

-- What is left of a reader's hold: the longest of its leases. Redisson has one for each time it has entered, we have the
-- first only. A reader that has entered more often than is asked for lasts as long as the hash: none lasts longer. (Ours
-- never has.) -1: without an end; nil: it is over.
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

-- Who holds the name:
--   mode   read or write; nil: it is free
--   live   the holders in no order: field, count, left, own
--          (left: until its hold is over, which needs the hash, and a reader's its own key as well; own: what is left of that)
--   by     the same by field
--   dead   fields of readers whose leases are over; they hold nothing
--   left   how long until all holds are over, if none is extended; -1: without an end
--   other  there is a hash, but not a read-write lock's
-- Or nothing, and the error.
local function look()
  local fields = pcall('HGETALL', KEYS[1])
  if fields.err then
    return nil, refuse('rw_lock', fields)
  end
  local found, mode = { live = {}, by = {}, dead = {}, left = -2 }, nil
  for i = 1, #fields, 2 do
    if fields[i] == 'mode' then
      mode = fields[i + 1]
    end
  end
  if not mode then
    found.other = #fields > 0
    return found
  end
  local writes = mode ~= 'read'
  local ttl = call('PTTL', KEYS[1])
  for i = 1, #fields, 2 do
    local field, count = fields[i], tonumber(fields[i + 1]) or 0
    if field ~= 'mode' then
      local own, left = nil, nil
      if writes and is_writer(field) then
        own, left = ttl, ttl
      else
        own = left_of_reader(field, count, ttl)
        left = own and (own == -1 or ttl ~= -1 and ttl < own) and ttl or own
      end
      if left then
        found.by[field] = { field = field, count = count, left = left, own = own }
        found.live[#found.live + 1] = found.by[field]
        if found.left ~= -1 and (left == -1 or left > found.left) then
          found.left = left
        end
      else
        found.dead[#found.dead + 1] = field
      end
    end
  end
  if writes or #found.live > 0 then
    found.mode = mode
  end
  if writes then
    found.left = ttl
  end
  return found
end

-- The hold of the lease id of `field`, in whichever of its forms: a writer becomes a reader, and never goes back. So requests
-- that name the other form are late, or early.
local function hold_of(found, field)
  local owner = string.match(field, '^[^:]*:%d+') or field
  return found.by[field] or found.by[owner .. ':write'] or found.by[owner]
end
