-- semaphore/release.lua: give a lease id up for good, and its permits back.
--
-- KEYS[1] name       string  how many permits are free (Redisson RSemaphore)
-- KEYS[2] out        zset    `<client uuid>:<lease id> <count>` of each hold of ours -> until when it is remembered, in ms
-- KEYS[3] gone       string  tombstone of this lease id
-- ARGV[1] hold       bytes   `<client uuid>:<lease id> <count>`
-- ARGV[2] channel    bytes   where Redisson's waiters listen, and ours
-- ARGV[3] gone_ms    integer leave a tombstone for so long; 0: leave none
-- ARGV[4] listening  integer 1 if this client is a subscriber of the channel itself
-- ARGV[5] marker     bytes   where ours listen as well
-- ARGV[6] holds      integer how many holds this client has had in a row; 0: no turn is to be left to Redisson's waiters
--
-- Returns {1, others, turns} its permits are free; so many other clients of ours listen, and so many turns are left to Redisson's waiters
--         {0, 0}       it has none
-- Error   all is as it was, but for the tombstone.
-- Retry   safe: a second copy finds the hold gone. It changes nothing but the tombstone.
local hold = ARGV[1]
if ARGV[3] ~= '0' then
  begin_to_write(KEYS[2])
  pcall('SET', KEYS[3], '1', 'PX', ARGV[3])
end
if not remembered(KEYS[2], hold) then
  return { 0, 0 }
end
local others, ours, turns = count_others(ARGV[2], ARGV[5], ARGV[4], 0, ARGV[6])
local refused = give_back(count_of(hold), ARGV[2], before_number(turns, others > ours))
if refused then
  return refused
end
local done = pcall('ZREM', KEYS[2], hold)
if is_error(done) then
  if call('EXISTS', KEYS[1]) == 1 then
    call('INCRBY', KEYS[1], -count_of(hold))
  end
  return done
end
return { 1, ours, turns }
