-- exclusive/holder_string.lua: a holder that is a string; written in front of the steps of the plain mutex.
--
-- KEYS[1] name  string  <owner>, or another library's token; its TTL is the lease
local call, pcall, kind, reserve = redis.call, redis.pcall, 'plain_mutex', nil

-- Makes `owner` the holder of a free name.
local function take(owner, lease_ms)
  call('SET', KEYS[1], owner, 'NX', 'PX', lease_ms)
end

-- Frees the name of this owner. Whether it held it.
local function leave(owner)
  return call('GET', KEYS[1]) == owner and call('DEL', KEYS[1]) == 1
end

-- Whether the owner holds a name; and what the server said, which is an error if another type stands there.
local function holds(name, owner)
  local said = pcall('GET', name)
  return said == owner, said
end
