-- latch/step.lua: read or change the count.
--
-- KEYS[1] name     string  the count (Redisson RCountDownLatch)
-- KEYS[2] done     string  the answer to this request, once it is carried out
-- ARGV[1] channel  bytes   where Redisson's waiters listen, and ours
-- ARGV[2] step     bytes   count, try_set, down, or delete
-- ARGV[3] number   integer of try_set the count; of down by how much
-- ARGV[4] done_ms  integer how long the answer is kept
--
-- Returns the count then; of try_set 1 if it was set, 0 if there was one; of delete 1 if there was one
-- Error   all is as it was.
-- Retry   safe: a second copy finds the answer, and changes nothing.
local channel, step, number = ARGV[1], ARGV[2], tonumber(ARGV[3])
local count, refused = read_number('latch')
if refused then
  return refused
end
if step == 'count' then
  return math.max(count, 0)
end
local told = told_before(KEYS[2], ARGV[4])
if told then
  return tonumber(told)
end
local is_there = call('EXISTS', KEYS[1]) == 1
local after, answer, message = count, 0, nil
if step == 'try_set' then
  if not is_there then
    after, answer, message = number, 1, '1'
  end
elseif step == 'down' then
  if is_there then
    after = math.max(count - number, 0)
    -- Redisson's waiters go on at this message.
    message = after == 0 and '0' or nil
  end
  answer = after
elseif is_there then
  -- Redisson's waiters sleep on at '1', which its own delete says: nothing is left that they could wait for.
  after, answer, message = 0, 1, '0'
end
-- Everything that may be refused comes first, and what is told is true in a moment.
if is_there and after == 0 then
  call('DEL', KEYS[2]) -- which is not there: only whether DEL is refused
end
local done = call('SET', KEYS[2], string.format('%d', answer), 'PX', ARGV[4])
if after > 0 and (after ~= count or not is_there) then
  done = pcall('INCRBY', KEYS[1], after - count)
end
if message and not is_error(done) then
  done = pcall('PUBLISH', channel, message)
  if is_error(done) and after > 0 then
    call('INCRBY', KEYS[1], count - after)
    if not is_there then
      pcall('DEL', KEYS[1])
    end
  end
end
if is_error(done) then
  pcall('DEL', KEYS[2])
  return done
end
if after == 0 then
  call('DEL', KEYS[1])
end
return answer
