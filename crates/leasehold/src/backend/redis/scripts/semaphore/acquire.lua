-- semaphore/acquire.lua: take so many permits if they are free, all of them or none.
--
-- KEYS[1] name     string  how many permits are free (Redisson RSemaphore)
-- KEYS[2] done     string  what became of this lease id: `taken`, or `given` back for good
-- ARGV[1] count    integer how many permits; 1 to 1024
-- ARGV[2] kept_ms  integer how long that is kept
-- ARGV[3] channel  bytes   where Redisson's waiters listen, and ours
-- ARGV[4] permits  integer how many there are from now on, if no client has set that; 0: as it is
--
-- Returns {1, -1}  the permits are this lease id's
--         {0, -1}  too few are free
--         {2, -1}  this lease id was given up before this request arrived
--         {4, -1}  no client has set how many permits there are
-- Error   all is as it was, but for how many there are.
-- Retry   safe while it is kept: a second copy finds what became of the lease id, and takes nothing. A later one takes permits that no client
--         gives back.
local told = told_before(KEYS[2], ARGV[2])
if told then
  return { told == 'taken' and 1 or 2, -1 }
end
local free, refused = read_number('semaphore')
if refused then
  return refused
end
local count, permits = tonumber(ARGV[1]), tonumber(ARGV[4])
if free == 0 and call('EXISTS', KEYS[1]) == 0 then
  if permits == 0 then
    return { 4, -1 }
  end
  free = call('INCRBY', KEYS[1], permits)
  tell(ARGV[3], free)
end
if free < count then
  return { 0, -1 }
end
-- What a full server refuses comes first: from a script that has begun to write it refuses nothing.
call('SET', KEYS[2], 'taken', 'PX', ARGV[2])
call('INCRBY', KEYS[1], -count)
return { 1, -1 }
