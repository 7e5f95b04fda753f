-- leased_semaphore/acquire.lua: take so many permits if they are free, all of them or none.
--
-- KEYS[1] name      string  how many permits are free (Redisson RPermitExpirableSemaphore)
-- KEYS[2] out       zset    the id of each permit that is out -> its end in ms; {name}:timeout
-- KEYS[3] gone      string  tombstone of this lease id
-- ARGV[1] first     bytes   the id of the first permit: 16 bytes, or 32 in hex; the others have their number in bytes 7 and 8
-- ARGV[2] count     integer how many permits; 1 to 1024
-- ARGV[3] lease_ms  integer at least 1; the same in every request for this lease id
-- ARGV[4] channel   bytes   where Redisson's waiters listen, and ours
-- ARGV[5] permits   integer how many there are from now on, if no client has set that; 0: as it is
-- ARGV[6] exactly   integer 1: also if a client has
--
-- Returns {1, left_ms} the permits are this lease id's, for left_ms from now
--         {0, ttl_ms}  too few are free; the next one ends in ttl_ms; -1: none that is out has an end
--         {2, 0}       this lease id was given up before this request arrived
--         {4, -1}      no client has set how many permits there are, and none is out
-- Error   all is as it was, but for how many there are: a permit neither lost nor counted twice.
-- Retry   safe: the holder keeps its end or gets a later one (B2). The last request says how many there are.
local first, count, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- In this order (B3, B4): it holds; it was given up; enough are free.
local ends, there, earliest = look(KEYS[2], first, count)
if there == count then
  return { 1, move_forward(KEYS[2], first, ends, count, earliest, now + lease) }
end
if call('EXISTS', KEYS[3]) == 1 then
  return { 2, 0 }
end
local free, refused = reclaim(ARGV[4])
if not refused and there > 0 then
  -- A part of a hold is none.
  free, refused = give_back(first, ends, count, there, ARGV[4])
end
local permits, exactly = tonumber(ARGV[5]), ARGV[6] == '1'
if not refused and permits > 0 then
  local differs = exactly and free + call('ZCARD', KEYS[2]) ~= permits
  if differs or free == 0 and call('EXISTS', KEYS[1]) == 0 then
    free, refused = set_permits(permits, free, ARGV[4])
  end
end
if refused then
  return refused
end
if free < count then
  local next_end = call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
  if not next_end and call('EXISTS', KEYS[1]) == 0 then
    return { 4, -1 }
  end
  next_end = tonumber(next_end or NEVER)
  return { 0, next_end == NEVER and -1 or next_end - now }
end
local ttl = call('PTTL', KEYS[1])
call('INCRBY', KEYS[1], -count)
for i = 0, count - 1 do
  local done = pcall('ZADD', KEYS[2], now + lease, permit(first, i))
  if is_error(done) then
    call('INCRBY', KEYS[1], count)
    for j = 0, i - 1 do
      call('ZREM', KEYS[2], permit(first, j))
    end
    return done
  end
end
if ttl > 0 then
  -- The whole semaphore has an end. If that is refused, its permits are kept until theirs.
  pcall('PEXPIRE', KEYS[2], ttl)
  lease = math.min(lease, ttl)
end
return { 1, lease }
