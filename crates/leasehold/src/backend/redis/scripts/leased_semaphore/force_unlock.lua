-- leased_semaphore/force_unlock.lua: take all permits that are out from their holders, and give them back.
--
-- KEYS[1] name     string  how many permits are free (Redisson RPermitExpirableSemaphore)
-- KEYS[2] out      zset    the id of each permit that is out -> its end in ms; {name}:timeout
-- ARGV[1] channel  bytes   where Redisson's waiters listen, and ours
-- ARGV[2] marker   bytes   where ours listen as well, and hear that all were taken by force
--
-- Returns the ids of the permits that were out; none: all were free
-- Error   all is as it was.
-- Retry   not safe: the second copy may take permits from the next holders. It is sent once.
local _, refused = reclaim(ARGV[1])
if refused then
  return refused
end
local out = call('ZRANGE', KEYS[2], 0, -1)
if #out == 0 then
  return out
end
begin_to_write(KEYS[2])
local free = call('INCRBY', KEYS[1], #out)
local done = free > 0 and tell(ARGV[1], free)
if not is_error(done) then
  done = pcall('ZREMRANGEBYRANK', KEYS[2], 0, -1)
end
if is_error(done) then
  call('INCRBY', KEYS[1], -#out)
  return done
end
pcall('PUBLISH', ARGV[2], 'forced')
return out
