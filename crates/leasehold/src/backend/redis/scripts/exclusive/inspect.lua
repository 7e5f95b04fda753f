-- exclusive/inspect.lua: read the holders of the name, its queue, and its last token.
--
-- KEYS[1] name     hash    <owner> -> hold count; its TTL is the lease (Redisson RLock); of a plain mutex a string, the owner
-- KEYS[2] queue    list    "<owner> <lease_ms> <ask>" of the waiting clients
-- KEYS[3] token    string  the last token that was given or reserved; of a fenced mutex only
-- ARGV[1] channel  bytes   where Redisson's waiters listen, and ours
--
-- Returns {ttl_ms, waiting, {owner, holds, ...}, places}; ttl_ms -1: without an end, -2: free;
--         waiting: how many clients listen; where the server does not say, how many stand in the queue; places: the first 100 of
--         the queue; of a fenced mutex {..., token}: a decimal number, empty if there is none
-- Retry   safe: it only reads.
local held = holders()
if held.err then
  return held
end
local heard = pcall('PUBSUB', 'NUMSUB', ARGV[1])
-- Where PUBSUB is not permitted, and where Valkey 9.1 miscounts (8, 15, 16, 29 to 32, 57 to 64 …): those in the queue.
local unknown = heard.err or heard[2] < 0 or heard[2] > 1000000
local waiting = unknown and call('LLEN', KEYS[2]) or heard[2]
local queue = pcall('LRANGE', KEYS[2], 0, 99)
local reply = { call('PTTL', KEYS[1]), waiting, held, queue.err and {} or queue }
if KEYS[3] then
  reply[5] = call('GET', KEYS[3]) or ''
end
return reply
