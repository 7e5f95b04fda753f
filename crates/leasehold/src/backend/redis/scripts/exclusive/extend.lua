-- exclusive/extend.lua: let a lease end at least lease_ms from now.
--
-- KEYS[1] name      hash    <owner> -> hold count; its TTL is the lease (Redisson RLock); of a plain mutex a string, the owner
-- ARGV[1] owner     bytes   <client uuid>:<lease id>
-- ARGV[2] lease_ms  integer how long at least; 0: only look
--
-- Returns left_ms: how long the lease lasts from now, at least lease_ms and 1; 0: the owner does not hold the name
-- Retry   safe: the end on the server only moves forward (B2), so copies and other extensions arrive in any order.
local is_ours, said = holds(KEYS[1], ARGV[1])
if not is_ours then
  return type(said) == 'table' and said or 0
end
local left, least = call('PTTL', KEYS[1]), tonumber(ARGV[2])
if left == -1 then
  return math.max(least, 1) -- it has no end, which is later than any (B2)
end
if left < least then
  call('PEXPIRE', KEYS[1], ARGV[2])
end
return math.max(left, least)
