-- fair_mutex/keep.lua: keep the places of a client's waiters, and see to it that the next has the name when it is free.
--
-- KEYS[1] name       hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue      list    the owners that wait, next first (Redisson RFairLock)
-- KEYS[3] gone       string  a tombstone's key without the owner it ends with
-- KEYS[4] timeouts   zset    <owner> -> from when on Redisson takes it for dead (Redisson RFairLock)
-- KEYS[5] places     hash    the terms of our waiters, and since when others are silent: line.lua
-- ARGV[1] channel    bytes   where Redisson's waiters listen, each behind ":" and its owner
-- ARGV[2] grants     bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[3] dead_ms    integer a waiter that is not heard for so long is dead
-- ARGV[4] client     bytes   <client uuid>
-- ARGV[5] keep_ms    integer how long the queue outlives its last visitor, if none of Redisson's waits in it
-- ARGV[6] alive_ms   integer the next such request comes within this time
-- ARGV    places     integer for each waiter: lease id, lease_ms, and the number of this ask
--
-- Returns {foreign, ttl_ms, n, ...}: foreign 1: clients of Redisson's hold the name or wait for it; ttl_ms how long the holder's
--         lease lasts, or the next may take to have it, -1: without an end; n: the numbers of the waiters that do not wait, or
--         are next while the name is free, and must ask for it
-- Error   the name is as it was, or given to the next in the queue.
-- Retry   safe: it makes no place, a place keeps the latest ask (B3), and the next has the name only if it is free.
local missing, asks = {}, {}
for i = 7, #ARGV, 3 do
  local owner = ARGV[4] .. ':' .. ARGV[i]
  asks[owner] = { lease_ms = ARGV[i + 1], ask = ARGV[i + 2] }
end
local holders = pcall('HKEYS', KEYS[1])
if holders.err then
  return refuse('fair_mutex', holders)
end
local queue = call('LRANGE', KEYS[2], 0, -1)
local places, ours = {}, 0
for i, owner in ipairs(queue) do
  places[i] = call('HGET', KEYS[5], owner)
  if places[i] or asks[owner] then
    ours = ours + 1
  end
end
local foreign = ours < #queue or (holders[1] and is_foreign(holders[1]))
local alive_ms = foreign and dead_ms or tonumber(ARGV[6]) + dead_ms

local before, latest = 0, 0
for i, owner in ipairs(queue) do
  local kept = asks[owner]
  if kept then
    kept.found = true
    local ask = string.match(places[i] or '', '^%d+ (%d+)')
    if not ask or tonumber(ask) < tonumber(kept.ask) then
      ask = kept.ask
    end
    call('HSET', KEYS[5], owner, kept.lease_ms .. ' ' .. ask .. ' ' .. (before > 0 and 1 or 0))
    call('HDEL', KEYS[5], '?' .. owner)
    call('ZADD', KEYS[4], deadline_of(alive_ms, before, latest), owner)
  elseif places[i] then
    -- Of another client of ours. What died stays no longer than it must, for Redisson's clients do not pass it over.
    local there = is_there(owner)
    if there then
      call('HDEL', KEYS[5], '?' .. owner)
    elseif there == false and silent_for(owner) >= dead_ms then
      leave(owner)
    end
  else
    local deadline = tonumber(call('ZSCORE', KEYS[4], owner) or now)
    if may_hear(channel .. ':' .. owner) then
      call('HDEL', KEYS[5], '?' .. owner)
      -- A hold that lasts longer than it has reckoned with.
      local another = holders[1] and deadline_of(dead_ms, before, latest)
      if another and deadline < tonumber(another) then
        call('ZADD', KEYS[4], another, owner)
        deadline = tonumber(another)
      end
    else
      silent_for(owner)
    end
    before = before + 1
    latest = math.max(latest, deadline)
  end
end
if #queue > 0 then
  keep_queue(ARGV[5], ours < #queue)
end

local ttl, looks
if holders[1] then
  ttl = call('PTTL', KEYS[1])
else
  local first = next_in_line()
  if asks[first] and hears(grants .. ARGV[4]) == nil then
    looks = first -- no message gives it the name
  end
  ttl = not looks and pass_on()
  if not ttl then
    -- None is heard here. This client may be heard elsewhere, and is alive: it asks.
    for _, owner in ipairs(queue) do
      looks = looks or asks[owner] and owner
    end
    ttl = dead_ms
  end
end
local reply = { foreign and 1 or 0, ttl }
for i = 7, #ARGV, 3 do
  local owner = ARGV[4] .. ':' .. ARGV[i]
  if not asks[owner].found then
    -- What may be left of a place that was taken from the list makes no place: its next ask does.
    call('ZREM', KEYS[4], owner)
    call('HDEL', KEYS[5], owner)
  end
  if not asks[owner].found or owner == looks then
    reply[#reply + 1] = (i - 4) / 3
  end
end
return reply
