-- semaphore/force_unlock.lua: take their permits from all holders that are remembered, and give them back.
--
-- KEYS[1] name     string  how many permits are free (Redisson RSemaphore)
-- KEYS[2] out      zset    `<client uuid>:<lease id> <count>` of each hold of ours -> until when it is remembered, in ms
-- ARGV[1] channel  bytes   where Redisson's waiters listen, and ours
--
-- Returns the holds; none, if none is remembered
-- Error   all is as it was.
-- Retry   not safe: the second copy may take permits from the next holders. It is sent once.
local _, refused = count_free()
if refused then
  return refused
end
local out = call('ZRANGEBYSCORE', KEYS[2], '(' .. string.format('%d', now), '+inf')
local count = 0
for _, hold in ipairs(out) do
  count = count + count_of(hold)
end
if count == 0 then
  return out
end
refused = give_back(count, ARGV[1])
if refused then
  return refused
end
local done = pcall('ZREMRANGEBYRANK', KEYS[2], 0, -1)
if is_error(done) then
  if call('EXISTS', KEYS[1]) == 1 then
    call('INCRBY', KEYS[1], -count)
  end
  return done
end
return out
