-- rw_lock/inspect.lua: read who holds the name.
--
-- KEYS[1] name      hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts  string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
-- ARGV[1] channel   bytes   where Redisson's waiters listen, and ours
--
-- Returns {subscribers, {field, holds, ttl_ms, ...}}; ttl_ms -1: without an end; without readers whose lease is over;
--         subscribers -1: not known (PUBSUB is not permitted; Valkey 9.1 miscounts some numbers)
-- Retry   safe: it only reads.
local found, refused = look()
if not found then
  return refused
end
if found.other then
  return refuse('rw_lock')
end
local holders = {}
for _, holder in ipairs(found.live) do
  holders[#holders + 1] = holder.field
  holders[#holders + 1] = holder.count
  holders[#holders + 1] = holder.left
end
local heard = pcall('PUBSUB', 'NUMSUB', ARGV[1])
return { (heard.err or heard[2] < 0 or heard[2] > 1000000) and -1 or heard[2], holders }
