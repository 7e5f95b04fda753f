-- fair_mutex/inspect.lua: read the holders of the name, how many clients wait in the queue, and its first places.
--
-- KEYS[1] name   hash  <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue  list  the owners that wait, next first (Redisson RFairLock)
--
-- Returns {ttl_ms, clients, {owner, holds, ...}, {owner, ...}}; ttl_ms -1: without an end, -2: free; at most 100 that wait
-- Retry   safe: it only reads.
local held = redis.pcall('HGETALL', KEYS[1])
if held.err then
  return refuse('fair_mutex', held)
end
for i = 1, #held, 2 do
  if held[i] == 'mode' then
    return refuse('fair_mutex')
  end
end
local seen, clients = {}, 0
for _, owner in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
  local client = string.match(owner, '^(.*):') or owner
  if not seen[client] then
    seen[client], clients = true, clients + 1
  end
end
return { redis.call('PTTL', KEYS[1]), clients, held, redis.call('LRANGE', KEYS[2], 0, 99) }
