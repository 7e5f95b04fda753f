-- fair_mutex/release.lua: give a lease id up for good, and the name, if it has it, to the next in the queue.
--
-- KEYS[1] name       hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue      list    the owners that wait, next first (Redisson RFairLock)
-- KEYS[3] gone       string  a tombstone's key without the owner it ends with
-- KEYS[4] timeouts   zset    <owner> -> from when on Redisson takes it for dead (Redisson RFairLock)
-- KEYS[5] places     hash    the terms of our waiters, and since when others are silent: line.lua
-- ARGV[1] channel    bytes   where Redisson's waiters listen, each behind ":" and its owner
-- ARGV[2] grants     bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[3] dead_ms    integer a waiter that is not heard for so long is dead
-- ARGV[4] owner      bytes   <client uuid>:<lease id>
-- ARGV[5] gone_ms    integer leave a tombstone for so long; 0: leave none
--
-- Returns {1, others}  the name is free; so many waiters of Redisson's were told
--         {2, ms}      given to the next, for ms from now
--         {0, 0}       the owner did not hold it
-- Error   the name is as it was, or free without the next being told.
-- Retry   safe: a second copy finds the owner gone. It changes nothing but the tombstone.
local owner = ARGV[4]
if ARGV[5] ~= '0' then
  pcall('SET', KEYS[3] .. owner, '1', 'PX', ARGV[5])
end
local holds = call('HEXISTS', KEYS[1], owner) == 1
local waited = call('HEXISTS', KEYS[5], owner) == 1 or call('ZSCORE', KEYS[4], owner)
if waited then
  leave(owner)
end
if not holds then
  -- A client of Redisson's may have told this one that the name is free: it passes that on.
  local ttl = waited and call('PTTL', KEYS[1])
  if ttl == -2 then
    pass_on()
  elseif ttl then
    tell_first(KEYS[2], grants, ttl)
  end
  return { 0, 0 }
end
local ms, ours = pass_on({ owner })
if ms and ours then
  return { 2, ms }
end
return { 1, ms and 1 or 0 }
