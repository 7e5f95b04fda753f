-- rw_lock/hand_over.lua: how holders leave, and who is next; written behind waiting.lua, holders.lua and take.lua, in front of acquire.lua,
-- release.lua, downgrade.lua and force_unlock.lua.
--
-- KEYS[1] name      hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts  string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
-- KEYS[3] queue     list    "<field> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[4] gone      string  a tombstone's key without the lease id it ends with

-- Whether a lease id was given up: such an id never holds again (B4).
local function is_given_up(field)
  return call('EXISTS', KEYS[4] .. (string.match(field, '^[^:]*:%d+') or field)) == 1
end

-- Who leaves, and how many stay; told to `leave` before anything else here is called.
local leaving, found, stay = {}, nil, 0
local taken_out = false

local function leave(who, of)
  leaving, found, stay = who, of, #of.live - #who
end

-- The holder of this field, if it stays.
local function staying(field)
  for _, holder in ipairs(leaving) do
    if holder.field == field then
      return nil
    end
  end
  return found.by[field]
end

-- How long the hash must last for those that stay; nil: it has no end to lose.
local function longest_that_stays()
  local gone, longest = {}, 0
  for _, holder in ipairs(leaving) do
    gone[holder.field] = true
  end
  for _, holder in ipairs(found.live) do
    if not gone[holder.field] then
      if holder.own == -1 then
        return nil
      end
      longest = math.max(longest, holder.own)
    end
  end
  return math.max(longest, 1)
end

-- What is left to the one of those that stay that is over first.
local function soonest()
  local left = math.huge
  for _, holder in ipairs(found.live) do
    if staying(holder.field) and holder.left ~= -1 then
      left = math.min(left, holder.left)
    end
  end
  return left
end

-- What is left to the one of those that leave that lasts longest; -1: it has no end.
local function longest_that_leaves()
  local left = 0
  for _, holder in ipairs(leaving) do
    if holder.left == -1 then
      return -1
    end
    left = math.max(left, holder.left)
  end
  return left
end

-- The name is not that of those who leave any more. In the hash they would stay holders: a second copy of a release would
-- find its field there, and give away what is the next one's (S2).
local function take_out()
  if stay > 0 and found.mode ~= 'read' then
    call('HSET', KEYS[1], 'mode', 'read')
  end
  for _, holder in ipairs(leaving) do
    call('HDEL', KEYS[1], holder.field)
  end
  taken_out = true
  -- Nothing below may be an error: what was refused above is not refused here, or does no harm.
  if stay == 0 then
    for _, dead in ipairs(found.dead) do
      call('HDEL', KEYS[1], dead)
    end
    call('HDEL', KEYS[1], 'mode')
  else
    -- Redisson's waiters sleep for as long as the hash has left.
    local longest = longest_that_stays()
    if longest then
      pcall('PEXPIRE', KEYS[1], longest)
    end
  end
  for _, holder in ipairs(leaving) do
    if not is_writer(holder.field) then
      for i = 1, math.min(holder.count, LEASES_MOST) do
        pcall('DEL', timeout_key(holder.field, i)) -- ends by itself
      end
    end
  end
end

-- Puts back the place that stood first.
local function put_back(place, lease_ms)
  pcall('LPUSH', KEYS[3], place)
  -- Where it was the only one, the queue is a new one. It ends like any other, or is none.
  if call('PTTL', KEYS[3]) == -1 and type(pcall('PEXPIRE', KEYS[3], math.max(30000, tonumber(lease_ms)))) ~= 'number' then
    call('LREM', KEYS[3], 0, place)
  end
end

-- Gives the name to the first in the queue that hears it, and if that is a reader, to the readers behind it up to the next
-- writer: publishes to each client the place with which it was queued, and so the ask that it answers (B3). Returns the
-- length of the first one's lease, or nil if there is none; and whether readers have it now and no writer waits behind them. Where the
-- server does not tell who hears, all in the queue are told to look.
--
-- The commands that may be refused come before a client is told, for a message cannot be taken back. An error comes before
-- those who leave are taken out; after nil the name may be free already.
local function give_to_next(grants, before)
  local given, holders, writes, shortest = nil, stay, false, math.huge
  local place = call('LINDEX', KEYS[3], 0)
  while place do
    local field, client, lease_ms = string.match(place, '^(([^:]*):%S+) (%d+) %d+$')
    -- The place of a lease id that holds already, in whichever form, is none to give the name to (B4), nor to take it from (S1).
    local waits = field and not hold_of(found, field)
    if waits and holders > 0 and is_writer(field) then
      break
    end
    local heard = waits and hears(grants .. client)
    if heard == nil then
      for _, waits in ipairs(call('LRANGE', KEYS[3], 0, -1)) do
        pcall('PUBLISH', grants .. (client_in(waits) or ''), '0')
      end
      break
    end
    call('LPOP', KEYS[3])
    if heard and not is_given_up(field) then
      if not taken_out then
        take_out()
      end
      if take(field, lease_ms, holders == 0) then
        break
      end
      -- It must be a holder before it is told so. If no connection hears it, that client is gone.
      local told = pcall('PUBLISH', grants .. client, place)
      if type(told) == 'number' and told > 0 then
        given, holders = given or tonumber(lease_ms), holders + 1
        found.by[field] = { field = field, count = 1, left = tonumber(lease_ms), own = tonumber(lease_ms) }
        shortest = math.min(shortest, tonumber(lease_ms))
        if is_writer(field) then
          writes = true
          break
        end
      else
        drop(field, holders == 0)
        if type(told) ~= 'number' then
          -- The caller may tell none: those that wait keep their places.
          put_back(place, lease_ms)
          break
        end
      end
    end
    place = call('LINDEX', KEYS[3], 0)
  end
  local sooner
  if given then
    before = before or longest_that_leaves()
    local left = math.min(shortest, soonest())
    tell_first(KEYS[3], grants, left)
    sooner = before == -1 or left < before
  end
  return given, given and not writes and not place, sooner
end

-- '1' wakes all of Redisson's threads that wait in a process. It passes one by that has just asked and is about to wait, which then
-- sleeps until the end of a lease that is no more; '0' wakes one, also such a one.
local function wake_late_comers(channel)
  pcall('PUBLISH', channel, '0')
end

-- Frees the name for all who listen. Returns an error if that is refused and those who leave hold it still. (If they do
-- not, no error may hide that it is free.)
local function free(channel)
  local done = pcall('PUBLISH', channel, found.mode == 'read' and '0' or '1')
  if found.mode ~= 'read' then
    wake_late_comers(channel)
  end
  if taken_out then
    return nil
  end
  if type(done) ~= 'number' then
    return done
  end
  take_out()
  return nil
end
