-- exclusive/acquire.lua: take the name if it is free, else take a place in the queue.
--
-- KEYS[1] name      hash    <owner> -> hold count; its TTL is the lease (Redisson RLock); of a plain mutex a string, the owner
-- KEYS[2] queue     list    "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[3] token     string  the last token that was given or reserved; of a fenced mutex only
-- ARGV[1] owner     bytes   <client uuid>:<lease id>
-- ARGV[2] lease_ms  integer at least 1; the same in every request for this lease id
-- ARGV[3] ask       integer number of this ask, from 1; 0 or left out: take no place in the queue
-- ARGV[4] keep_ms   integer how long the queue outlives its last visitor
-- ARGV[5] token_ms  integer how long the token outlives its last use; 0: for ever; of a fenced mutex only
--
-- Returns left_ms      the owner holds the name, for left_ms from now, at least 1 (lease_ms, if it has no end)
--         {1, left_ms, first, count} the same of a fenced mutex; the owner's token is `first`, and the count - 1 behind it are
--                      for the next holders in its process
--         {0, ttl_ms}  another owner holds it; -1: without an end
--         {3, ttl_ms}  a holder that is none of ours: it tells no client when it leaves; -1: without an end
--         {2, 0}       this lease id was given up before this request arrived
-- Error   the name is as it was, and the queue has at most a place less: no error leaves the name held without a holder.
-- Retry   safe: the holder keeps its end or gets a later one (B2), a place keeps its rank and the latest ask (B3). A holder of a
--         fenced mutex that asks again has newer tokens from then on: those of an answer that was lost are given to no other.
local owner = ARGV[1]
local gone = string.sub(KEYS[2], 1, -6) .. 'gone:' .. owner
if call('EXISTS', KEYS[1], KEYS[2], gone) > 0 then
  local answer = contended(KEYS, ARGV)
  if answer then
    return answer
  end
end
if not reserve then
  return take(owner, ARGV[2]) or tonumber(ARGV[2])
end
local first, count = reserve(ARGV[5])
return first and (take(owner, ARGV[2]) or { 1, tonumber(ARGV[2]), first, count }) or count
