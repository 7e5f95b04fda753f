-- mutex/inspect.lua: read the holders of the name.
--
-- KEYS[1] name     hash   <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue    list   "<owner> <lease_ms> <ask>" of the waiting clients
-- ARGV[1] channel  bytes  where Redisson's waiters listen, and ours
--
-- Returns {ttl_ms, waiting, {owner, holds, ...}, places}; ttl_ms -1: without an end, -2: free;
--         waiting: how many clients listen; where the server does not say, how many stand in the queue; places: the first 100 of
--         the queue
-- Retry   safe: it only reads.
local held = redis.pcall('HGETALL', KEYS[1])
if held.err then
  return refuse('mutex', held)
end
for i = 1, #held, 2 do
  if held[i] == 'mode' then
    return refuse('mutex')
  end
end
local heard = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])
-- Where PUBSUB is not permitted, and where Valkey 9.1 miscounts (8, 15, 16, 29 to 32, 57 to 64 …): those in the queue.
local unknown = heard.err or heard[2] < 0 or heard[2] > 1000000
local waiting = unknown and redis.call('LLEN', KEYS[2]) or heard[2]
local queue = redis.pcall('LRANGE', KEYS[2], 0, 99)
return {
  redis.call('PTTL', KEYS[1]),
  waiting,
  held,
  queue.err and {} or queue,
}
