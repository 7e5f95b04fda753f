-- semaphore/permits.lua: read or change how many permits there are.
--
-- KEYS[1] name     string  how many permits are free (Redisson RSemaphore)
-- KEYS[2] out      zset    `<client uuid>:<lease id> <count>` of each hold of ours -> until when it is remembered, in ms
-- KEYS[3] done     string  the answer to this request, once it is carried out
-- ARGV[1] channel  bytes   where Redisson's waiters listen, and ours
-- ARGV[2] step     bytes   available, try_set, set, add, or drain
-- ARGV[3] permits  integer of set and try_set: how many in all, free and out; of add: how many more, or fewer if negative
-- ARGV[4] done_ms  integer how long the answer is kept
--
-- Returns how many are free then; of try_set 1 if they were set, 0 if they were set before; of drain how many were taken
-- Error   all is as it was.
-- Retry   safe: a second copy finds the answer, and changes nothing.
local channel, step, permits = ARGV[1], ARGV[2], tonumber(ARGV[3])
local free, refused = count_free()
if refused then
  return refused
end
if step == 'available' then
  return free
end
local told = call('GET', KEYS[3])
if told then
  call('PEXPIRE', KEYS[3], ARGV[4]) -- a request that was sent again may be late itself
  return tonumber(told)
end

local is_new = call('EXISTS', KEYS[1]) == 0
local after, answer
if step == 'add' then
  after = free + permits
  answer = after
elseif step == 'drain' then
  after = math.min(free, 0)
  answer = free - after
elseif step == 'try_set' and not is_new then
  after, answer = free, 0
else
  after = all_but_those_out(permits)
  answer = step == 'try_set' and 1 or after
end
local changes = after ~= free or is_new and step ~= 'drain'
if changes then
  -- INCRBY where Redisson writes the number anew: the key keeps its end.
  call('INCRBY', KEYS[1], after - free)
end
local done = pcall('SET', KEYS[3], string.format('%d', answer), 'PX', ARGV[4])
-- Redisson cannot read a negative number, and there is nothing to be had at 0.
if not is_error(done) and after > 0 and changes then
  done = tell(channel, after)
end
if is_error(done) then
  if changes then
    call('INCRBY', KEYS[1], free - after)
  end
  if is_new then
    pcall('DEL', KEYS[1])
  end
  pcall('DEL', KEYS[3])
  return done
end
return answer
