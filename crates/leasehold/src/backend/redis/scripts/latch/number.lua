-- latch/number.lua: the part that the scripts of this folder share, written in front of each of them.
--
-- KEYS[1] name  string  the count (Redisson RCountDownLatch)
local call, pcall = redis.call, redis.pcall

local function is_error(reply)
  return type(reply) == 'table' and reply.err ~= nil
end

-- The count, 0 if there is none; nil and an error if the name is no latch.
local function read_count()
  local count = pcall('GET', KEYS[1])
  if is_error(count) then
    return nil, refuse('latch', count)
  end
  count = tonumber(count or '0')
  if not count then
    return nil, refuse('latch')
  end
  local other = refuse_other_number('latch')
  if other then
    return nil, other
  end
  return count
end
