-- fair_mutex/line.lua: the queue of all waiters, Redisson's and ours, and how the lock is passed on to its next; written behind
-- waiting.lua, in front of the steps of the fair mutex.
--
-- KEYS[1] name      hash   <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue     list   the owners that wait, next first (Redisson RFairLock)
-- KEYS[3] gone      string a tombstone's key without the owner it ends with
-- KEYS[4] timeouts  zset   <owner> -> from when on Redisson takes it for dead, in ms since 1970 (Redisson RFairLock)
-- KEYS[5] places    hash   of our waiters: <owner> -> "<lease_ms> <ask> <1: Redisson's clients were before it>"; of any:
--                          "?<owner>" -> since when it is not heard; of Redisson's: "!<owner>" -> another deadline that it was given
-- ARGV[1] channel   bytes   where Redisson's waiters listen, each behind ":" and its owner
-- ARGV[2] grants    bytes   prefix of the channels on which our clients hear that the name is theirs
-- ARGV[3] dead_ms   integer a waiter that is not heard for so long is dead
local channel, grants, dead_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Whether a lease id was given up: such an id never holds again (B4).
local function is_given_up(owner)
  return call('EXISTS', KEYS[3] .. owner) == 1
end

-- Makes `owner` the holder for `lease_ms` from now. False if the server refuses that; then it is none.
local function write(owner, lease_ms)
  call('HSET', KEYS[1], owner, 1)
  if pcall('PEXPIRE', KEYS[1], lease_ms) ~= 1 then
    call('HDEL', KEYS[1], owner)
    return false
  end
  return true
end

local function client_of(owner)
  return string.match(owner, '^(.*):') or owner
end

-- Whether an owner that holds the lock is no lease id of ours: those tell when they were made, in 11 bits less.
local function is_foreign(owner)
  local number = tonumber(string.match(owner, ':(%d+)$'))
  return not number or number < 100 * 86400000 * 2048 or number >= 36500 * 86400000 * 2048
end

-- The owner does not wait any more. What is left of an empty queue goes with it.
local function leave(owner)
  call('LREM', KEYS[2], 1, owner)
  call('ZREM', KEYS[4], owner)
  call('HDEL', KEYS[5], owner, '?' .. owner, '!' .. owner)
  if call('EXISTS', KEYS[2]) == 0 then
    call('DEL', KEYS[4], KEYS[5])
  end
end

local function mark(field, text)
  call('HSET', KEYS[5], field, text)
  if call('PTTL', KEYS[5]) < 2 * dead_ms then
    call('PEXPIRE', KEYS[5], 2 * dead_ms)
  end
end

-- For how long this owner has not been heard.
local function silent_for(owner)
  local since = call('HGET', KEYS[5], '?' .. owner)
  if since then
    return now - since
  end
  mark('?' .. owner, string.format('%d', now))
  return 0
end

-- Whether a waiter of Redisson's may still be alive, now that it may take the lock; and how long it has left, if it is not heard: it takes
-- its place before it subscribes. One that is heard after a hold that was longer than its deadline gets another, once: its own next request
-- would prune it.
local function may_live(owner)
  local deadline = tonumber(call('ZSCORE', KEYS[4], owner) or '')
  local is_over = deadline and deadline <= now
  if not may_hear(channel .. ':' .. owner) then
    local left = dead_ms - silent_for(owner)
    return left > 0 and not is_over, left
  end
  call('HDEL', KEYS[5], '?' .. owner)
  if is_over then
    if tonumber(call('HGET', KEYS[5], '!' .. owner) or '') == deadline then
      return false
    end
    local another = string.format('%d', now + dead_ms)
    call('ZADD', KEYS[4], another, owner)
    mark('!' .. owner, another)
  end
  return true
end

-- Whether a waiter of ours can be given the lock: its client listens, and has kept its place in time; nil: it has, and the server does
-- not tell who listens. One that is stopped listens, too.
local function is_there(owner)
  local deadline = tonumber(call('ZSCORE', KEYS[4], owner) or '')
  if deadline and deadline <= now then
    return false
  end
  return hears(grants .. client_of(owner))
end

-- Reads the queue from its head. Each call returns the next owner; `has_left`: the one before it was taken out. A long queue is not read
-- at once, since most often its head is next, and not one by one, since the dead may be many.
local function queue_reader()
  local read, at, kept, ahead = {}, 0, 0, 0
  return function(has_left)
    if has_left then
      kept = kept - 1
    end
    at = at + 1
    if at > #read then
      read = call('LRANGE', KEYS[2], kept, kept + ahead)
      at, ahead = 1, 63
    end
    if read[at] then
      kept = kept + 1
    end
    return read[at]
  end
end

-- Our clients that were passed over, since they are not heard here. They may be heard elsewhere: a node of a cluster sends messages to all
-- others, and counts its own listeners only.
local passed_over = {}

-- The next to have the lock, now that it is free: an owner, with its place if it is ours, or with the time that it has left
-- if it is Redisson's and is not heard. Takes the dead out of the queue. Ours that are not heard keep their places for a while, and are
-- passed over. `asks` is alive: it asks.
local function next_in_line(asks)
  local read = queue_reader()
  local owner = read()
  while owner do
    local place = call('HGET', KEYS[5], owner)
    local lives, left = true, nil
    if owner == asks then
      return owner, place
    elseif not place then
      lives, left = may_live(owner)
      if lives then
        -- All that are not heard have been silent together.
        local behind = left and read()
        while behind and not call('HGET', KEYS[5], behind) and not may_hear(channel .. ':' .. behind) do
          silent_for(behind)
          behind = read()
        end
        return owner, nil, left
      end
    elseif is_given_up(owner) then
      lives = false
    elseif is_there(owner) ~= false then
      return owner, place
    else
      lives = silent_for(owner) < dead_ms
      passed_over[client_of(owner)] = true
    end
    if not lives then
      leave(owner)
    end
    owner = read(not lives)
  end
  return nil
end

-- Passes the free lock on to one that was found next. Returns how long ours has it, or how long Redisson's may take it, and whether it is
-- ours; nil if it is gone.
--
-- Each command that may be refused comes before a client is told, for a message cannot be taken back.
local function pass_to(owner, place, left)
  if not place then
    if call('LINDEX', KEYS[2], 0) ~= owner then
      -- Redisson gives it only to the head. Those that were passed over stay behind it.
      call('LREM', KEYS[2], 0, owner)
      call('LPUSH', KEYS[2], owner)
    end
    pcall('PUBLISH', channel .. ':' .. owner, '0')
    return left or dead_ms, false
  end
  local inbox = grants .. client_of(owner)
  if hears(inbox) == nil then
    -- It looks, as Redisson's do, and is dead if it does not.
    local look_ms = dead_ms - silent_for(owner)
    if look_ms <= 0 then
      leave(owner)
      return nil
    end
    pcall('PUBLISH', inbox, '0')
    return look_ms, true
  end
  local lease_ms, ask = string.match(place, '^(%d+) (%d+)')
  leave(owner)
  if not write(owner, lease_ms) then
    return nil
  end
  -- It must be the holder before it is told so. If no connection hears it, that client is gone.
  local told = pcall('PUBLISH', inbox, owner .. ' ' .. lease_ms .. ' ' .. ask)
  if type(told) == 'number' and told > 0 then
    return tonumber(lease_ms), true
  end
  call('HDEL', KEYS[1], owner)
  return nil
end

-- Passes the lock on to the next, if there is one; returns as `pass_to`. An error comes before those in `from` are taken out of it. If
-- none can be given it, those that are not heard are told to look.
local function pass_on(from)
  local owner, place, left = next_in_line()
  if from then
    call('HDEL', KEYS[1], unpack(from))
  end
  while owner do
    local ms, ours = pass_to(owner, place, left)
    if ms then
      if ours then
        tell_first(KEYS[2], grants, ms)
      end
      return ms, ours
    end
    owner, place, left = next_in_line()
  end
  for client in pairs(passed_over) do
    pcall('PUBLISH', grants .. client, '0')
  end
  return nil
end

-- The key of a queue in which none of Redisson's waits has an end: all of its owners may have died. Redisson's have none.
local function keep_queue(keep_ms, foreign)
  for _, key in ipairs({ KEYS[2], KEYS[4] }) do
    if foreign then
      call('PERSIST', key)
    else
      call('PEXPIRE', key, keep_ms)
    end
  end
  call('PEXPIRE', KEYS[5], keep_ms)
end

-- The deadline that Redisson reads: it prunes a head that is past it. Ours move theirs on as long as they wait. Redisson takes its
-- own waiting time, five minutes unless told otherwise, from all deadlines when one of its waiters has had its turn: so much more for
-- each of those that stand before it.
local function deadline_of(alive_ms, before, latest)
  local deadline = now + alive_ms + 300000 * before
  if before > 0 then
    deadline = math.max(deadline, latest + dead_ms)
  end
  return string.format('%d', deadline)
end
