-- mutex/release_all.lua: give several lease ids up for good, each as release.lua does, which stands in front of this as a function.
--
-- n lease ids, each with three of #KEYS and five of ARGV in a row:
-- name       hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- queue      list    "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- gone       string  a tombstone's key without the owner it ends with
-- owner      bytes   <client uuid>:<lease id>
-- channel    bytes   where Redisson's waiters listen, and ours
-- grants     bytes   prefix of the channels on which our clients hear that the name is theirs
-- gone_ms    integer leave a tombstone for so long; 0: leave none
-- listening  integer 1 if this client is a subscriber of the channel itself
--
-- Returns {answer, ...} one for each, as release.lua gives it
-- Error   some may have been given up, and the others hold their names as before: ask again.
-- Retry   safe: a second copy finds the owners gone. It changes nothing but the tombstones.
local answers = {}
for i = 0, #KEYS / 3 - 1 do
  local k, a = 3 * i, 5 * i
  answers[i + 1] = release(
    { KEYS[k + 1], KEYS[k + 2], KEYS[k + 3] },
    { ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5], '', '0', '0', '0', '0' }
  )
end
return answers
