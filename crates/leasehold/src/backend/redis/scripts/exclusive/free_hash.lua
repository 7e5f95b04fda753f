-- exclusive/free_hash.lua: the uncontended way of acquire.lua as a mutex goes it, in front of all that the other ways need: it does what
-- `take` does, and makes no function first.
--
-- KEYS[1] name   hash  <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue  list  of the waiting clients
if redis.call('EXISTS', KEYS[1], KEYS[2], string.sub(KEYS[2], 1, -6) .. 'gone:' .. ARGV[1]) == 0 then
  redis.call('HSET', KEYS[1], ARGV[1], 1)
  local ends = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
  if ends ~= 1 then
    redis.call('HDEL', KEYS[1], ARGV[1])
    return ends
  end
  return tonumber(ARGV[2])
end
