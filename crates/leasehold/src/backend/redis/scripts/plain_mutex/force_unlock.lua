-- plain_mutex/force_unlock.lua: take the name from whichever library's client holds it, and give it to the next in the queue.
--
-- KEYS[1] name       string  <owner>, or another library's token; its TTL is the lease
-- KEYS[2] queue      list    "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[3] gone       string  a tombstone's key without the owner it ends with
-- ARGV[1] channel    bytes   where our waiters listen
-- ARGV[2] grants     bytes   prefix of the channels on which our clients hear that the name is theirs
--
-- Returns the owner or the token that held it; none: it was free
-- Error   the name is as it was: commands that may be refused (rights, a channel) come before those that delete.
-- Retry   not safe: the second copy may take the name from the next holder. It is sent once.
local holder = pcall('GET', KEYS[1])
if type(holder) == 'table' then
  return refuse('plain_mutex', holder)
end
if not holder then
  return {}
end
if is_permits(holder) then
  return refuse('plain_mutex')
end
local waiting = call('LLEN', KEYS[2])
if waiting > 0 and is_queues_turn(count_others(ARGV[1], 0, waiting), waiting) and give_to_next(ARGV[2]) then
  return { holder }
end
return free(ARGV[1]) or { holder }
