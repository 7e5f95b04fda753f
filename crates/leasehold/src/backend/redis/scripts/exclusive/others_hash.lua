-- exclusive/others_hash.lua: who else holds a hash; written behind refuse.lua.
--
-- KEYS[1] name  hash  <owner> -> hold count; its TTL is the lease (Redisson RLock)

-- The code of a holder that is another owner; nil: another kind of lock stands there.
local function code_of_other()
  return call('HEXISTS', KEYS[1], 'mode') == 0 and 0 or nil
end

-- The holders, and behind each its hold count; or an error.
local function holders()
  local held = pcall('HGETALL', KEYS[1])
  if held.err then
    return refuse(kind, held)
  end
  for i = 1, #held, 2 do
    if held[i] == 'mode' then
      return refuse(kind)
    end
  end
  return held
end
