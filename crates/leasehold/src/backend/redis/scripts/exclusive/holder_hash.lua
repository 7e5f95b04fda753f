-- exclusive/holder_hash.lua: a holder that is a field of a hash; written in front of the steps of the mutex and the fenced mutex.
--
-- KEYS[1] name  hash  <owner> -> hold count; its TTL is the lease (Redisson RLock)
local call, pcall, kind, reserve = redis.call, redis.pcall, 'mutex', nil -- tokens.lua changes both

-- Makes `owner` the holder of a free name. An error if its end is refused: then none holds it, for it would never end.
local function take(owner, lease_ms)
  call('HSET', KEYS[1], owner, 1)
  local ends = pcall('PEXPIRE', KEYS[1], lease_ms)
  if ends ~= 1 then
    call('HDEL', KEYS[1], owner)
    return ends
  end
end

-- Frees the name of this owner. Whether it held it.
local function leave(owner)
  return call('HDEL', KEYS[1], owner) == 1
end

-- Whether the owner holds a name; and what the server said, which is an error if another type stands there.
local function holds(name, owner)
  local said = pcall('HEXISTS', name, owner)
  return said == 1, said
end
