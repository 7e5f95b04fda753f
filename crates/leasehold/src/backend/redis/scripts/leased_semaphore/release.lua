-- leased_semaphore/release.lua: give a lease id up for good, and its permits back.
--
-- KEYS[1] name       string  how many permits are free (Redisson RPermitExpirableSemaphore)
-- KEYS[2] out        zset    the id of each permit that is out -> its end in ms; {name}:timeout
-- KEYS[3] gone       string  tombstone of this lease id
-- ARGV[1] first      bytes   the id of the first permit: 16 bytes, or 32 in hex; the others have their number in bytes 7 and 8
-- ARGV[2] count      integer how many permits; 1 to 1024
-- ARGV[3] channel    bytes   where Redisson's waiters listen, and ours
-- ARGV[4] gone_ms    integer leave a tombstone for so long; 0: leave none
-- ARGV[5] listening  integer 1 if this client is a subscriber of the channel itself
-- ARGV[6] marker     bytes   where ours listen as well
-- ARGV[7] holds      integer how many holds this client has had in a row; 0: no turn is to be left to Redisson's waiters;
--                    negative: one of them may not be counted
--
-- Returns {1, others, turns} the permits that were still there are free; so many other clients of ours listen, and so many turns are left to
--                      Redisson's waiters
--         {0, 0}       none was there
-- Error   all is as it was, but for the tombstone.
-- Retry   safe: a second copy finds the permits gone. It changes nothing but the tombstone.
local first, count = ARGV[1], tonumber(ARGV[2])
if ARGV[4] ~= '0' then
  begin_to_write(KEYS[2])
  pcall('SET', KEYS[3], '1', 'PX', ARGV[4])
end
local ends, there = look(KEYS[2], first, count)
if there == 0 then
  return { 0, 0 }
end
local others, ours, turns = count_others(ARGV[3], ARGV[6], ARGV[5], 0, ARGV[7])
local _, refused = reclaim(ARGV[3])
if not refused then
  -- As Redisson: of one permit how many are free now, of several how many were given back.
  _, refused = give_back(first, ends, count, there, ARGV[3], count > 1 and there or nil, before_number(turns, others > ours))
end
return refused or { 1, ours, turns }
