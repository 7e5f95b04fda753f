-- leased_semaphore/permits.lua: read or change how many permits there are.
--
-- KEYS[1] name     string  how many permits are free (Redisson RPermitExpirableSemaphore)
-- KEYS[2] out      zset    the id of each permit that is out -> its end in ms; {name}:timeout
-- ARGV[1] channel  bytes   where Redisson's waiters listen, and ours
-- ARGV[2] step     bytes   available, try_set, set, add, or drain
-- ARGV[3] permits  integer of set and try_set: how many in all, free and out; of add: how many more, or fewer if negative
--
-- Returns how many are free then; of try_set 1 if they were set, 0 if they were set before; of drain how many were taken
-- Error   all is as it was.
-- Retry   of add and drain not safe: it may count twice, or take what came since. All others: safe.
local channel, step, permits = ARGV[1], ARGV[2], tonumber(ARGV[3])

if step == 'drain' then
  local free, refused = reclaim(channel)
  if refused then
    return refused
  end
  if free > 0 then
    call('INCRBY', KEYS[1], -free)
  end
  return math.max(free, 0)
elseif step == 'add' then
  -- INCRBY where Redisson writes the number anew: the key keeps its end.
  local _, refused = read_number('leased_semaphore')
  if refused then
    return refused
  end
  -- Refused before anything is changed; Redisson cannot read a negative number.
  local done = permits > 0 and tell(channel, permits)
  if is_error(done) then
    return done
  end
  call('INCRBY', KEYS[1], permits)
elseif step ~= 'available' then
  local free, refused = read_number('leased_semaphore')
  if refused then
    return refused
  end
  if step == 'try_set' and call('EXISTS', KEYS[1]) == 1 then
    return 0
  end
  free, refused = set_permits(permits, free, channel)
  if refused then
    return refused
  end
  if step == 'try_set' then
    return 1
  end
end
local free, refused = reclaim(channel)
return refused or free
