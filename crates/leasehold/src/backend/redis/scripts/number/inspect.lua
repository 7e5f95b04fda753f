-- number/inspect.lua: read a number that tells no holders, and how many clients wait.
--
-- KEYS[1] name     string  how many permits are free (Redisson RSemaphore), or the count (RCountDownLatch)
-- ARGV[1] channel  bytes   where Redisson's waiters listen, and ours
-- ARGV[2] kind     bytes   semaphore or latch
--
-- Returns {number, subscribers}; subscribers -1: not known
-- Retry   safe: it only reads.
local number, refused = read_number(ARGV[2])
return refused or { number, listeners(ARGV[1]) }
