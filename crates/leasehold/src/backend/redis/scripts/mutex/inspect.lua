-- mutex/inspect.lua: read the holders of the name.
--
-- KEYS[1] name     hash   <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- ARGV[1] channel  bytes  where Redisson's waiters listen, and ours
--
-- Returns {ttl_ms, subscribers, {owner, holds, ...}}; ttl_ms -1: without an end, -2: free;
--         subscribers -1: not known (PUBSUB is not permitted; Valkey 9.1 miscounts some numbers)
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
return {
  redis.call('PTTL', KEYS[1]),
  (heard.err or heard[2] < 0 or heard[2] > 1000000) and -1 or heard[2],
  held,
}
