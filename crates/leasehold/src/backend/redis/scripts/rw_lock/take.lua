-- rw_lock/take.lua: how a hold begins and is lengthened; written behind holders.lua, in front of each script that does it.
--
-- KEYS[1] name      hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts  string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows

-- The hash lasts at least so long. Never shorter than before: each other hold in it needs it as well (B2).
local function outlast(lease_ms)
  local left = call('PTTL', KEYS[1])
  if left < 0 or left >= tonumber(lease_ms) then
    return 1
  end
  return pcall('PEXPIRE', KEYS[1], lease_ms)
end

-- A hold that began beside others, or `alone`, is none.
local function drop(field, alone)
  -- HDEL and not DEL: whose rights go by the type of a key may use it where it may use HSET.
  call('HDEL', KEYS[1], field)
  if alone then
    call('HDEL', KEYS[1], 'mode')
  end
  if not is_writer(field) then
    pcall('DEL', timeout_key(field, 1)) -- says nothing without the field, and ends by itself
  end
end

-- Makes `field` a holder for `lease_ms` from now, beside other readers, or `alone` where it is free. An error
-- if the server refuses that; then it is none.
local function take(field, lease_ms, alone)
  local mode = 'write'
  if not is_writer(field) then
    mode = 'read'
    local set = pcall('SET', timeout_key(field, 1), '1', 'PX', lease_ms)
    if set.err then
      return set
    end
  end
  local done = pcall('HSET', KEYS[1], 'mode', mode, field, 1)
  if type(done) ~= 'number' then
    return done
  end
  if alone then
    done = pcall('PEXPIRE', KEYS[1], lease_ms)
  else
    done = outlast(lease_ms)
  end
  if type(done) ~= 'number' then
    drop(field, alone)
    return done
  end
end

-- Lets a hold of ours last at least `lease_ms` from now (B2). What is left of it then, -1 if it has no end; or an error.
local function lengthen(held, lease_ms)
  local least = tonumber(lease_ms)
  if held.left == -1 or held.left >= least then
    return held.left
  end
  -- First what must outlast the other.
  local done = outlast(lease_ms)
  if type(done) ~= 'number' then
    return done
  end
  if not is_writer(held.field) and held.own ~= -1 and held.own < least then
    call('PEXPIRE', timeout_key(held.field, 1), lease_ms)
  end
  return least
end
