-- rw_lock/extend.lua: let a lease end at least lease_ms from now.
--
-- KEYS[1] name      hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts  string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
-- ARGV[1] field     bytes   <client uuid>:<lease id> of a reader, <client uuid>:<lease id>:write of a writer
-- ARGV[2] lease_ms  integer how long at least; 0: only look
--
-- Returns left_ms: how long the lease lasts from now, at least lease_ms and 1; 0: the field does not hold the name
-- Retry   safe: the end on the server only moves forward (B2), so copies and other extensions arrive in any order.
local held, refused = hold_of(ARGV[1])
local left = held and lengthen(held, ARGV[2]) or refused or 0
if left == -1 then
  return math.max(ARGV[2], 1) -- it has no end
end
return left
