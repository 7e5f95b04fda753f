-- exclusive/release.lua: give a lease id up for good, and the name, if it has it, to the next client in the queue.
--
-- KEYS[1] name       hash    <owner> -> hold count; its TTL is the lease (Redisson RLock); of a plain mutex a string, the owner
-- KEYS[2] queue      list    "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[3] token      string  the last token that was given or reserved; of a fenced mutex only
-- ARGV[1] owner      bytes   <client uuid>:<lease id>
-- ARGV[2] channel    bytes   where Redisson's waiters listen, and ours
-- Left out where the defaults do:
-- ARGV[3] gone_ms    integer leave a tombstone for so long; 0: leave none
-- ARGV[4] listening  integer 1 if this client is a subscriber of the channel itself
-- ARGV[5] token_ms   integer how long the token outlives its last use; 0: for ever; of a fenced mutex only
-- ARGV[6] holds      integer how many holds this client has had in a row; 0: no turn is to be left to Redisson's waiters;
--                    negative: one of them may not be counted
-- ARGV[7] next       bytes   owner of this client to which the name goes at once, if no client of ours waits and no turn is left
-- ARGV[8] next_ms    integer the lease of `next`
--
-- Returns others       the name is free; so many other clients were told, at least 0
--         {1, others, turns} the same; so many turns are left to Redisson's waiters
--         {2, ms}      given to the next client in the queue, for ms from now; one of a fenced mutex is told its tokens
--         {3, left_ms} `next` holds it, for left_ms from now: it stays with this client, or an earlier copy found so; of a fenced mutex
--                      {3, left_ms, first, count}, with its tokens
--         -1           the owner did not hold it
-- Error   the name is as it was, or free without a client being told.
-- Retry   safe: a second copy finds the owner gone. It changes nothing but the tombstone and, for `next`, the tokens.
if ARGV[6] or ARGV[3] and ARGV[3] .. ARGV[4] ~= '00' or call('LLEN', KEYS[2]) > 0 then
  return contended(KEYS, ARGV)
end
-- No client of ours waits: Redisson's unlock.
return leave(ARGV[1]) and call('PUBLISH', ARGV[2], '0') or -1
