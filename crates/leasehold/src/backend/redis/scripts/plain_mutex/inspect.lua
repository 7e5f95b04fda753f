-- plain_mutex/inspect.lua: read the holder of the name.
--
-- KEYS[1] name     string  <owner>, or another library's token; its TTL is the lease
-- ARGV[1] channel  bytes   where our waiters listen
--
-- Returns {ttl_ms, subscribers, {holder}}; no holder: it is free; ttl_ms -1: without an end; subscribers -1: not known
--         (PUBSUB is not permitted; Valkey 9.1 miscounts some numbers)
-- Retry   safe: it only reads.
local holder = redis.pcall('GET', KEYS[1])
if type(holder) == 'table' then
  return refuse('plain_mutex', holder)
end
if holder and is_permits(holder) then
  return refuse('plain_mutex')
end
local heard = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])
return {
  redis.call('PTTL', KEYS[1]),
  (heard.err or heard[2] < 0 or heard[2] > 1000000) and -1 or heard[2],
  holder and { holder } or {},
}
