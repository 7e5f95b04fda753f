-- fair_mutex/force_unlock.lua: take the name from whichever owner holds it, and give it to the next in the queue.
--
-- KEYS[1] name       hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue      list    the owners that wait, next first (Redisson RFairLock)
-- KEYS[3] gone       string  a tombstone's key without the owner it ends with
-- KEYS[4] timeouts   zset    <owner> -> from when on Redisson takes it for dead (Redisson RFairLock)
-- KEYS[5] places     hash    the terms of our waiters, and since when others are silent: line.lua
-- ARGV[1] channel    bytes   where Redisson's waiters listen, each behind ":" and its owner
-- ARGV[2] grants     bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[3] dead_ms    integer a waiter that is not heard for so long is dead
-- and behind these   the holders that were seen, if it is to be taken only from them: forced.lua
--
-- Returns The owners that held it; none: it was free, or is not as it was seen
-- Error   the name is as it was, or free without the next being told.
-- Retry   not safe: the second copy may take the name from the next holder. It is sent once.
local owners = pcall('HKEYS', KEYS[1])
if owners.err then
  return refuse('fair_mutex', owners)
end
for _, owner in ipairs(owners) do
  if owner == 'mode' then
    return refuse('fair_mutex')
  end
end
if not is_as_seen(4, owners, function() return call('PTTL', KEYS[1]) end) then
  return {}
end
if #owners > 0 then
  pass_on(owners)
  tell_holders(grants, owners)
end
return owners
