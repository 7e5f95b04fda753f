-- mutex/extend.lua: let a lease end at least lease_ms from now.
--
-- KEYS[1] name      hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- ARGV[1] owner     bytes   <client uuid>:<lease id>
-- ARGV[2] lease_ms  integer how long at least; 0: only look
--
-- Returns left_ms: how long the lease lasts from now, at least lease_ms and 1; 0: the owner does not hold the name
-- Retry   safe: the end on the server only moves forward (B2), so copies and other extensions arrive in any order.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local left = redis.call('PTTL', KEYS[1])
if left == -1 then
  return math.max(ARGV[2], 1) -- it has no end, which is later than any (B2)
end
if left < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  left = tonumber(ARGV[2])
end
return left
