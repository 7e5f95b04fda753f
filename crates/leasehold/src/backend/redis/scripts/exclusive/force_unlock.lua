-- exclusive/force_unlock.lua: take the name from whichever owner holds it, and give it to the next client in the queue.
--
-- KEYS[1] name      hash    <owner> -> hold count; its TTL is the lease (Redisson RLock); of a plain mutex a string, the owner
-- KEYS[2] queue     list    "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[3] token     string  the last token that was given or reserved; it stays; of a fenced mutex only
-- ARGV[1] channel   bytes   where Redisson's waiters listen, and ours
-- ARGV[2] token_ms  integer how long the token outlives its last use; 0: for ever; of a fenced mutex only
-- and behind these   the holders that were seen, if it is to be taken only from them: forced.lua
--
-- Returns the owners that held it; none: it was free, or is not as it was seen
-- Error   the name is as it was, or free without a client being told.
-- Retry   not safe: the second copy may take the name from the next holder. It is sent once.
local held = holders()
if held.err or #held == 0 then
  return held
end
local owners = {}
for i = 1, #held, 2 do
  owners[#owners + 1] = held[i]
end
local waiting, before = call('LLEN', KEYS[2]), call('PTTL', KEYS[1])
if not is_as_seen(3, owners, function() return before end) then
  return {}
end
call('DEL', KEYS[1])
local others, ours = count_others(ARGV[1], marker(ARGV[1]), 0, waiting, 0)
pass_on(ARGV[1], others, ours, 0, waiting, before, ARGV[2])
tell_holders(grants, owners)
if kind == 'mutex' then
  tell_holders(string.sub(grants, 1, -#'grant:' - 1) .. 'fair:grant:', owners) -- it may have been a fair one
end
return owners
