-- leased_semaphore/extend.lua: let a hold end at least lease_ms from now.
--
-- KEYS[1] out       zset    the id of each permit that is out -> its end in ms; {name}:timeout
-- ARGV[1] first     bytes   the id of the first permit: 16 bytes, or 32 in hex; the others have their number in bytes 7 and 8
-- ARGV[2] count     integer how many permits; 1 to 1024
-- ARGV[3] lease_ms  integer how long at least; 0: only look
--
-- Returns left_ms: how long all the permits last from now, at least lease_ms unless the whole semaphore ends before;
--         0: not all of them are there
-- Retry   safe: an end only moves forward (B2), so copies and other extensions arrive in any order.
local first, count = ARGV[1], tonumber(ARGV[2])
local ends, there, earliest = look(KEYS[1], first, count)
if there < count then
  return 0
end
return move_forward(KEYS[1], first, ends, count, earliest, now + tonumber(ARGV[3]))
