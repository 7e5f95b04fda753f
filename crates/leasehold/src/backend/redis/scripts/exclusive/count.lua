-- exclusive/count.lua: write how often the owner has entered, for readers of the key. Of the kinds whose name is a hash.
--
-- KEYS[1] name   hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- ARGV[1] owner  bytes   <client uuid>:<lease id>
-- ARGV[2] holds  integer at least 1
--
-- Returns 1 written, 0 not ours
-- Retry   safe: the count is absolute.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
