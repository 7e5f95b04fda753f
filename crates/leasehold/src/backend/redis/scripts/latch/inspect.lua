-- latch/inspect.lua: read the count, and how many clients wait.
--
-- KEYS[1] name     string  the count (Redisson RCountDownLatch)
-- ARGV[1] channel  bytes   where Redisson's waiters listen, and ours
--
-- Returns {count, subscribers}; subscribers -1: not known (PUBSUB is not permitted; Valkey 9.1 miscounts some numbers)
-- Retry   safe: it only reads.
local count, refused = read_count()
if refused then
  return refused
end
local heard = pcall('PUBSUB', 'NUMSUB', ARGV[1])
local unknown = is_error(heard) or heard[2] < 0 or heard[2] > 1000000
return { math.max(count, 0), unknown and -1 or heard[2] }
