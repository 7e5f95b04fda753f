-- mutex/release_all.lua: give several lease ids up for good, each as release.lua does, which stands in front of this as a function.
--
-- n lease ids, each with two of #KEYS and four of ARGV in a row:
-- name       hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- queue      list    "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- owner      bytes   <client uuid>:<lease id>
-- channel    bytes   where Redisson's waiters listen, and ours
-- gone_ms    integer leave a tombstone for so long; 0: leave none
-- listening  integer 1 if this client is a subscriber of the channel itself
--
-- Returns {answer, ...} one for each, as release.lua gives it
-- Error   some may have been given up, and the others hold their names as before: ask again.
-- Retry   safe: a second copy finds the owners gone. It changes nothing but the tombstones.
local answers = {}
for i = 0, #KEYS / 2 - 1 do
  local k, a = 2 * i, 4 * i
  answers[i + 1] = release(
    { KEYS[k + 1], KEYS[k + 2] },
    { ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4] }
  )
end
return answers
