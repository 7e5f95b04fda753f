-- semaphore/acquire.lua: take so many permits if they are free, all of them or none.
--
-- KEYS[1] name     string  how many permits are free (Redisson RSemaphore)
-- KEYS[2] out      zset    `<client uuid>:<lease id> <count>` of each hold of ours -> until when it is remembered, in ms
-- KEYS[3] gone     string  tombstone of this lease id
-- ARGV[1] hold     bytes   `<client uuid>:<lease id> <count>`
-- ARGV[2] count    integer how many permits; 1 to 1024
-- ARGV[3] keep_ms  integer how long the hold is remembered; the same in every request for this lease id
-- ARGV[4] channel  bytes   where Redisson's waiters listen, and ours
-- ARGV[5] permits  integer how many there are from now on, if no client has set that; 0: as it is
--
-- Returns {1, left_ms} the permits are this lease id's, which is remembered for left_ms from now
--         {0, -1}      too few are free
--         {2, 0}       this lease id was given up before this request arrived
--         {4, -1}      no client has set how many permits there are
-- Error   all is as it was, but for how many there are: a permit neither lost nor taken twice.
-- Retry   safe: a second copy finds the hold, and takes nothing.
local hold, count, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- In this order (B3, B4): it holds; it was given up; enough are free.
local ends_at = remembered(KEYS[2], hold)
if ends_at then
  return { 1, keep_on(KEYS[2], hold, ends_at, keep) }
end
if call('EXISTS', KEYS[3]) == 1 then
  return { 2, 0 }
end
local free, refused = count_free()
if refused then
  return refused
end
local permits, is_unset = tonumber(ARGV[5]), free == 0 and call('EXISTS', KEYS[1]) == 0
if is_unset and permits == 0 then
  return { 4, -1 }
end
if free < count and not is_unset then
  return { 0, -1 }
end
-- What the server may refuse comes before what changes.
local ttl = call('PTTL', KEYS[2])
if not (may('PUBLISH', ARGV[4], '1') and may('ZREM', KEYS[2], hold)) then
  return redis.error_reply('NOPERM permits could not be given back without PUBLISH and ZREM')
end
if is_unset then
  free = all_but_those_out(permits)
  -- As a release: Redisson cannot read a negative number.
  local told = free > 0 and tell(ARGV[4], free)
  if is_error(told) then
    return told
  end
  call('INCRBY', KEYS[1], free)
  if free < count then
    return { 0, -1 }
  end
end
call('INCRBY', KEYS[1], -count)
local done = pcall('ZADD', KEYS[2], now + keep, hold)
if is_error(done) then
  call('INCRBY', KEYS[1], count)
  return done
end
-- Those whose holders have died, and whose permits are gone with them.
pcall('ZREMRANGEBYSCORE', KEYS[2], 0, now)
outlast(KEYS[2], ttl, keep)
return { 1, keep }
