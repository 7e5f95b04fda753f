-- semaphore/inspect.lua: read which of our clients hold permits, and how many are free.
--
-- KEYS[1] name     string  how many permits are free (Redisson RSemaphore)
-- KEYS[2] out      zset    `<client uuid>:<lease id> <count>` of each hold of ours -> until when it is remembered, in ms
-- ARGV[1] channel  bytes   where Redisson's waiters listen, and ours
-- ARGV[2] most     integer at most so many holds, those that were heard of least recently
--
-- Returns {free, subscribers, {hold, ...}}; subscribers -1: not known (PUBSUB is not permitted; Valkey 9.1 miscounts some
--         numbers)
-- Retry   safe: it only reads.
local free, refused = count_free()
if refused then
  return refused
end
local after = '(' .. string.format('%d', now)
local found = call('ZRANGEBYSCORE', KEYS[2], after, '+inf', 'LIMIT', 0, ARGV[2])
local heard = pcall('PUBSUB', 'NUMSUB', ARGV[1])
local unknown = is_error(heard) or heard[2] < 0 or heard[2] > 1000000
return { free, unknown and -1 or heard[2], found }
