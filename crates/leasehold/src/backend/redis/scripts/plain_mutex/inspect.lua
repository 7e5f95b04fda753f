-- plain_mutex/inspect.lua: read the holder of the name.
--
-- KEYS[1] name     string  <owner>, or another library's token; its TTL is the lease
-- KEYS[2] queue    list    "<owner> <lease_ms> <ask>" of the waiting clients
-- ARGV[1] channel  bytes   where our waiters listen
--
-- Returns {ttl_ms, waiting, {holder}, places}; no holder: it is free; ttl_ms -1: without an end; waiting: how many clients
--         listen; where the server does not say, how many stand in the queue; places: the first 100 of the queue
-- Retry   safe: it only reads.
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then
  return refuse('plain_mutex', holder)
end
if holder and is_permits(holder) then
  return refuse('plain_mutex')
end
local heard = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])
-- Where PUBSUB is not permitted, and where Valkey 9.1 miscounts (8, 15, 16, 29 to 32, 57 to 64 …): those in the queue.
local unknown = heard.err or heard[2] < 0 or heard[2] > 1000000
local waiting = unknown and redis.call('LLEN', KEYS[2]) or heard[2]
local queue = redis.pcall('LRANGE', KEYS[2], 0, 99)
return {
  redis.call('PTTL', KEYS[1]),
  waiting,
  holder and { holder } or {},
  queue.err and {} or queue,
}
