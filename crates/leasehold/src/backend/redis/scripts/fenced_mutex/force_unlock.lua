-- fenced_mutex/force_unlock.lua: take the name from whichever owner holds it, and give it to the next client in the queue.
--
-- KEYS[1] name      hash    <owner> -> hold count; its TTL is the lease (Redisson RFencedLock)
-- KEYS[2] queue     list    "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[3] gone      string  a tombstone's key without the owner it ends with
-- KEYS[4] token     string  the last token that was given or reserved; it stays
-- ARGV[1] channel   bytes   where Redisson's waiters listen, and ours
-- ARGV[2] grants    bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[3] token_ms  integer how long the token outlives its last use; 0: for ever
--
-- Returns the owners that held it; none: it was free
-- Error   the name is as it was: commands that may be refused (rights, a channel) come before those that delete.
-- Retry   not safe: the second copy may take the name from the next holder. It is sent once.
local owners = pcall('HKEYS', KEYS[1])
if owners.err then
  return refuse('fenced_mutex', owners)
end
for _, owner in ipairs(owners) do
  if owner == 'mode' then
    return refuse('fenced_mutex')
  end
end
if #owners == 0 then
  return owners
end
local waiting = call('LLEN', KEYS[2])
local others = count_others(ARGV[1], 0, waiting)
if waiting > 0 and is_queues_turn(others, waiting) then
  local first, count = reserve(ARGV[3])
  local granted, sooner
  if first then
    granted, sooner = give_to_next(owners, ARGV[2], string.format(' %.0f %d', first, count))
  end
  if sooner and others > waiting then
    pcall('PUBLISH', ARGV[1], '0') -- as in release.lua
  end
  if granted then
    return owners
  end
end
return free(ARGV[1]) or owners
