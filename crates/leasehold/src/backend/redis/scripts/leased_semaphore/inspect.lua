-- leased_semaphore/inspect.lua: read who holds permits, and how many are free.
--
-- KEYS[1] name     string  how many permits are free (Redisson RPermitExpirableSemaphore)
-- KEYS[2] out      zset    the id of each permit that is out -> its end in ms; {name}:timeout
-- ARGV[1] channel  bytes   where Redisson's waiters listen, and ours
-- ARGV[2] most     integer about so many permits, those that end first
--
-- Returns {free, subscribers, {id, left_ms, ...}}; left_ms -1: without an end; subscribers -1: not known (PUBSUB is not
--         permitted; Valkey 9.1 miscounts some numbers)
-- Retry   safe: it only reads. Permits whose time is over are counted as free, and given back by the next who asks for one.
local free, refused = read_number('leased_semaphore')
if refused then
  return refused
end
local over = pcall('ZCOUNT', KEYS[2], 0, now)
if is_error(over) then
  return refuse('leased_semaphore', over)
end
local after = '(' .. string.format('%d', now)
local found = call('ZRANGEBYSCORE', KEYS[2], after, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
local last = found[#found]
if #found == 2 * ARGV[2] and tonumber(last) ~= NEVER then
  -- To the end of what ends at the same time: the permits of one hold.
  found = call('ZRANGEBYSCORE', KEYS[2], after, last, 'WITHSCORES')
end
for i = 2, #found, 2 do
  local ends_at = tonumber(found[i])
  found[i] = ends_at == NEVER and -1 or ends_at - now
end
return { free + over, listeners(ARGV[1]), found }
