-- mutex/force_unlock.lua: free the name, whoever holds it.
--
-- KEYS[1] name     hash   <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- ARGV[1] channel  bytes  where Redisson's waiters listen, and ours
--
-- Returns 1 freed, 0 it was free
-- Retry   not safe: the second copy may free the next holder's. It is sent once.
if redis.call('HLEN', KEYS[1]) == 0 then
  return 0
end
redis.call('PUBLISH', ARGV[1], '0')
redis.call('DEL', KEYS[1])
return 1
