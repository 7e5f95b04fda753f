-- mutex/abandon.lua: make sure that a lease neither holds the name nor ever will.
--
-- KEYS[1] name     hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue    list    "<owner> <lease_ms>" of the clients in line, next first
-- KEYS[3] gone     string  tombstone of this lease
-- ARGV[1] owner    bytes   <client uuid>:<lease id>
-- ARGV[2] channel  bytes   where Redisson's waiters listen, and ours
-- ARGV[3] gone_ms  integer leave a tombstone for so long
-- ARGV[4] place    bytes   our entry in the queue; empty: none
--
-- Returns 1  it held the name, which is free now
--         0  it did not
-- Retry   safe: a second copy finds nothing.
redis.call('SET', KEYS[3], '1', 'PX', ARGV[3])
if ARGV[4] ~= '' then
  redis.call('LREM', KEYS[2], 0, ARGV[4])
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
redis.call('PUBLISH', ARGV[2], '0')
redis.call('DEL', KEYS[1])
return 1
