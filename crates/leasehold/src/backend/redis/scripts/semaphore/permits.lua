-- semaphore/permits.lua: read or change how many permits there are.
--
-- KEYS[1] name     string  how many permits are free (Redisson RSemaphore)
-- KEYS[2] done     string  the answer to this request, once it is carried out
-- ARGV[1] channel  bytes   where Redisson's waiters listen, and ours
-- ARGV[2] step     bytes   available, try_set, add, or drain
-- ARGV[3] permits  integer of try_set: how many; of add: how many more, or fewer if negative
-- ARGV[4] kept_ms  integer how long the answer is kept
--
-- Returns how many are free then; of try_set 1 if they were set, 0 if they were set before; of drain how many were taken
-- Error   all is as it was.
-- Retry   safe while the answer is kept: a second copy finds it, and changes nothing.
local free, refused = read_number('semaphore')
if refused or ARGV[2] == 'available' then
  return refused or free
end
local told = told_before(KEYS[2], ARGV[4])
if told then
  return tonumber(told)
end
local more = tonumber(ARGV[3])
local answer, changes = free + more, true
if ARGV[2] == 'try_set' then
  changes = call('EXISTS', KEYS[1]) == 0
  answer = changes and 1 or 0
elseif ARGV[2] == 'drain' then
  answer = math.max(free, 0)
  more, changes = -answer, answer > 0
end
call('SET', KEYS[2], string.format('%d', answer), 'PX', ARGV[4])
if changes then
  -- INCRBY where Redisson writes the number anew: the key keeps its end.
  local after = call('INCRBY', KEYS[1], more)
  -- Redisson cannot read a negative number, and there is nothing to be had at 0.
  if after > 0 then
    tell(ARGV[1], after)
  end
end
return answer
