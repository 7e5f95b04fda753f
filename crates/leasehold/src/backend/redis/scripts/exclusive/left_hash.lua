-- exclusive/left_hash.lua: the uncontended way of release.lua as a mutex goes it, in front of all that the other ways need: it does what
-- `leave` does, and makes no function first.
--
-- KEYS[1] name   hash  <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue  list  of the waiting clients
if not ARGV[3] and redis.call('LLEN', KEYS[2]) == 0 then
  return redis.call('HDEL', KEYS[1], ARGV[1]) == 1 and redis.call('PUBLISH', ARGV[2], '0') or -1
end
