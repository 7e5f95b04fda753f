-- rw_lock/inspect.lua: read who holds the name.
--
-- KEYS[1] name      hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts  string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
-- KEYS[3] queue     list    "<field> <lease_ms> <ask>" of the waiting clients
-- ARGV[1] channel   bytes   where Redisson's waiters listen, and ours
--
-- Returns {waiting, {field, holds, ttl_ms, ...}, places}; ttl_ms -1: without an end; without readers whose lease is over;
--         waiting: how many clients listen; where the server does not say, how many stand in the queue; places: the first 100 of
--         the queue
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
-- Where PUBSUB is not permitted, and where Valkey 9.1 miscounts (8, 15, 16, 29 to 32, 57 to 64 …): those in the queue.
local unknown = heard.err or heard[2] < 0 or heard[2] > 1000000
local waiting = unknown and call('LLEN', KEYS[3]) or heard[2]
local queue = redis.pcall('LRANGE', KEYS[3], 0, 99)
return { waiting, holders, queue.err and {} or queue }
