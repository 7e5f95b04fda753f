-- semaphore/release.lua: give a lease id up for good, and its permits back.
--
-- KEYS[1] name       string  how many permits are free (Redisson RSemaphore)
-- KEYS[2] done       string  what became of this lease id: `taken`, or `given` back for good
-- ARGV[1] count      integer how many permits; 1 to 1024
-- ARGV[2] channel    bytes   where Redisson's waiters listen, and ours
-- ARGV[3] kept_ms    integer how long `done` is kept
-- ARGV[4] held       integer 1: the client was told that it has them; 0: it gives back what it may have
-- ARGV[5] listening  integer 1 if this client is a subscriber of the channel itself
-- ARGV[6] marker     bytes   where ours listen as well
-- ARGV[7] holds      integer how many holds this client has had in a row; 0: no turn is to be left to Redisson's waiters;
--                    negative: one of them may not be counted
--
-- Returns {1, others, turns} its permits are free; so many other clients of ours listen, and so many turns are left to Redisson's waiters
--         {0, 0}       it has none
-- Error   all is as it was.
-- Retry   safe while `done` is kept: a second copy finds them given. A later one of a hold would give them back again, so no client
--         repeats it for so long.
local told = call('GET', KEYS[2])
-- Permits are given back where there is no memory: from a script that has begun to write a full server refuses nothing.
pcall('PEXPIRE', KEYS[2], ARGV[3])
local has = told == 'taken' or not told and ARGV[4] == '1'
-- Unless the semaphore was deleted meanwhile: a number is made by no release.
local free = has and call('GET', KEYS[1]) and call('INCRBY', KEYS[1], ARGV[1]) or 0
call('SET', KEYS[2], 'given', 'PX', ARGV[3])
-- Redisson cannot read a negative number, and there is nothing to be had at 0.
local others, ours, turns = count_others(ARGV[2], ARGV[6], ARGV[5], 0, ARGV[7])
if free > 0 then
  tell(ARGV[2], free, before_number(turns, others > ours))
end
return has and { 1, ours, turns } or { 0, 0 }
