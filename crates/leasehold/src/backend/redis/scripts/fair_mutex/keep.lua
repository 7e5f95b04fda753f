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
-- ARGV[6] alive_ms   integer the next such request about the same waiters comes within this time
-- ARGV    places     integer for each of some waiters, at most 200 (KEPT_AT_ONCE), the first of them among these: lease id, lease_ms, and the
--                    number of this ask
--
-- Returns {foreign, ttl_ms, n, ...}: foreign 1: clients of Redisson's hold the name or wait for it; ttl_ms how long the holder's
--         lease lasts, or the next may take to have it, -1: without an end; n: the numbers of the waiters that do not wait, or
--         are next while the name is free, and must ask for it
-- Error   the name is as it was, or given to the next in the queue.
-- Retry   safe: it makes no place, a place keeps the latest ask (B3), and the next has the name only if it is free.
--
-- The time that it takes is that of the waiters it names, however many others wait: all are read, and not one by one, only where
-- clients of Redisson's wait among them, or the three keys do not agree.
local client, named, asks = ARGV[4], {}, {}
for i = 7, #ARGV, 3 do
  local owner = ARGV[4] .. ':' .. ARGV[i]
  local kept = { owner = owner, lease_ms = ARGV[i + 1], ask = ARGV[i + 2], before = 0 }
  named[#named + 1], asks[owner] = kept, kept
end
local holders = pcall('HKEYS', KEYS[1])
if holders.err then
  return refuse('fair_mutex', holders)
end

-- What stands in the hash of places for these owners; false: nothing.
local function places_of(owners)
  local places = {}
  for from = 1, #owners, 1000 do
    local some = call('HMGET', KEYS[5], unpack(owners, from, math.min(from + 999, #owners)))
    for i, place in ipairs(some) do
      places[from + i - 1] = place
    end
  end
  return places
end

-- Ours that died, and are none of those that are named: they stay no longer than they must, for Redisson's clients do not pass them over.
local function take_out_dead(owner, is_there)
  if is_there == false and silent_for(owner) >= dead_ms then
    leave(owner)
  end
end

-- The last in the queue tells whether any of Redisson's clients stood before it when it came (acquire.lua), and none has come since. Such a
-- one that was moved to the head is the first.
local many = call('LLEN', KEYS[2])
local first, last = call('LINDEX', KEYS[2], 0), call('LINDEX', KEYS[2], -1)
local ends = first and places_of({ first, last }) or {}
local only_ours = ends[1] and string.find(ends[2] or '', ' 0$') and call('ZCARD', KEYS[4]) == many
local marks = many > 0 and call('HLEN', KEYS[5]) - many or 0
local foreign = holders[1] and is_foreign(holders[1])
local mine = {} -- the named ones that wait

local before, latest = 0, 0
if only_ours then
  local owners = {}
  for i, kept in ipairs(named) do
    owners[i] = kept.owner
  end
  for i, place in ipairs(places_of(owners)) do
    if place and call('ZSCORE', KEYS[4], owners[i]) then
      named[i].place = place
      mine[#mine + 1] = named[i]
    end
  end
  for _, owner in ipairs(call('ZRANGEBYSCORE', KEYS[4], '-inf', string.format('%d', now), 'LIMIT', 0, 32)) do
    if not asks[owner] then
      take_out_dead(owner, false)
    end
  end
else
  local queue = call('LRANGE', KEYS[2], 0, -1)
  local places, ours, overdue, hearing = places_of(queue), 0, {}, {}
  for _, owner in ipairs(call('ZRANGEBYSCORE', KEYS[4], '-inf', string.format('%d', now))) do
    overdue[owner] = true
  end
  for i, owner in ipairs(queue) do
    if places[i] or asks[owner] then
      ours = ours + 1
    end
  end
  marks = call('HLEN', KEYS[5]) - ours
  foreign = foreign or ours < many
  local own, silent = client .. ':', {}
  for i, owner in ipairs(marks > 0 and queue or {}) do
    if places[i] and string.sub(owner, 1, #own) ~= own then
      silent[#silent + 1] = '?' .. owner
    end
  end
  for i, since in ipairs(places_of(silent)) do
    silent[silent[i]] = since
  end
  for i, owner in ipairs(queue) do
    local kept = asks[owner]
    if kept then
      kept.place, kept.before, kept.latest = places[i], before, latest
      mine[#mine + 1] = kept
    elseif places[i] then
      local there = not overdue[owner]
      if string.sub(owner, 1, #own) ~= own then
        local of = client_of(owner)
        hearing[of] = hearing[of] or { hears(grants .. of) }
        there = there and hearing[of][1]
        if there and silent['?' .. owner] then
          call('HDEL', KEYS[5], '?' .. owner)
        end
      end
      take_out_dead(owner, there)
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
end

local alive_ms = foreign and dead_ms or tonumber(ARGV[6]) + dead_ms
local terms, deadlines, heard = {}, {}, {}
for i, kept in ipairs(mine) do
  kept.found = true
  local ask = string.match(kept.place or '', '^%d+ (%d+)')
  if not ask or tonumber(ask) < tonumber(kept.ask) then
    ask = kept.ask
  end
  terms[2 * i - 1] = kept.owner
  terms[2 * i] = kept.lease_ms .. ' ' .. ask .. ' ' .. (kept.before > 0 and 1 or 0)
  deadlines[2 * i - 1] = deadline_of(alive_ms, kept.before, kept.latest or 0)
  deadlines[2 * i] = kept.owner
  heard[i] = '?' .. kept.owner
end
if #mine > 0 then
  call('HSET', KEYS[5], unpack(terms))
  call('ZADD', KEYS[4], unpack(deadlines))
  if marks > 0 then
    call('HDEL', KEYS[5], unpack(heard))
  end
end
if many > 0 then
  keep_queue(ARGV[5], before > 0)
end

local ttl, looks
if holders[1] then
  ttl = call('PTTL', KEYS[1])
else
  local next_one = next_in_line()
  if asks[next_one] and hears(grants .. client) == nil then
    looks = next_one -- no message gives it the name
  end
  ttl = not looks and pass_on()
  if not ttl then
    -- None is heard here. This client may be heard elsewhere, and is alive: it asks.
    looks = looks or mine[1] and mine[1].owner
    ttl = dead_ms
  end
end
local reply = { foreign and 1 or 0, ttl }
for i, kept in ipairs(named) do
  if not kept.found then
    -- What may be left of a place that was taken from the list makes no place: its next ask does.
    call('ZREM', KEYS[4], kept.owner)
    call('HDEL', KEYS[5], kept.owner)
  end
  if not kept.found or kept.owner == looks then
    reply[#reply + 1] = i
  end
end
return reply
