-- rw_lock/hand_over.lua: how holders leave, and who is next; written behind waiting.lua, places.lua, holders.lua, take.lua and queue.lua, in front of
-- acquire.lua, release.lua, downgrade.lua and force_unlock.lua.
--
-- KEYS[1] name      hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[2] timeouts  string  what the keys of the readers' leases begin with; <reader>:rwlock_timeout:<i> follows
-- KEYS[3] queue     list    "<field> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[4] gone      string  a tombstone's key without the lease id it ends with

-- Whether a lease id was given up: such an id never holds again (B4).
local function is_given_up(field)
  return call('EXISTS', KEYS[4] .. owner_of(field)) == 1
end

-- How long a reader's lease lasts, but for the one of `but`: the first that is found to last for `enough`, else the longest of those that were
-- asked; at least 1, and `math.huge` without an end. Nil: none reads, which is said only when all were asked (S1). And whether all were. A
-- few at random are asked first, and most often one of these lasts for `enough`. Those found dead are taken out.
local function longest_reader(ttl, enough, but)
  local many, longest, is_all = enough == 0 and 5 or 34, nil, nil
  repeat
    local fields, over = call('HRANDFIELD', KEYS[1], many, 'WITHVALUES'), {}
    is_all = #fields < 2 * many
    for i = #fields - 1, 1, -2 do
      local field = fields[i]
      if field ~= 'mode' and field ~= but then
        local left = left_of_reader(field, tonumber(fields[i + 1]) or 0, ttl)
        if left then
          longest = math.max(longest or 1, left == -1 and math.huge or left)
          if longest >= enough then
            break
          end
        else
          over[#over + 1] = field
        end
      end
    end
    if #over > 0 then
      call('HDEL', KEYS[1], unpack(over)) -- they have died, and hold nothing
    end
    many = longest and LEASES_MOST + 1 or math.min(4 * many, LEASES_MOST + 1)
  until is_all or longest and (longest >= enough or call('HLEN', KEYS[1]) > LEASES_MOST)
  return longest, is_all
end

-- As `look`, for one that waits: of many readers it does not tell which they are, and not how long they all last, but at least how long until it
-- is worth another look. None waits for longer than 12 s without one.
local function look_briefly()
  if call('HLEN', KEYS[1]) <= 34 or call('HGET', KEYS[1], 'mode') ~= 'read' then
    return look()
  end
  local ttl = call('PTTL', KEYS[1])
  local longest = longest_reader(ttl, ttl == -1 and 12000 or math.min(ttl - 1000, 12000))
  local left = longest and less_of(longest == math.huge and -1 or longest, ttl) or -2
  return { mode = longest and 'read', left = left, dead = {} }
end

-- Who leaves, as `look` has them; the fields of others that hold nothing; whether readers stay, and how long the hash must last for them,
-- if that is for less than it does. To be said before anything below is called.
local leaving, dead, stay, lasts = {}, {}, false, nil
local taken_out = false

-- The name is not that of those who leave any more. In the hash they would stay holders: a second copy of a release would
-- find its field there, and give away what is the next one's (S2).
local function take_out()
  for _, holder in ipairs(leaving) do
    call('HDEL', KEYS[1], holder.field)
  end
  taken_out = true
  -- Nothing below may be an error: what was refused above is not refused here, or does no harm.
  for _, field in ipairs(dead) do
    call('HDEL', KEYS[1], field)
  end
  if not stay then
    call('HDEL', KEYS[1], 'mode')
  elseif lasts then
    pcall('PEXPIRE', KEYS[1], lasts) -- Redisson's waiters sleep for as long as the hash has left
  end
  for _, holder in ipairs(leaving) do
    if not is_writer(holder.field) then
      for i = 1, math.min(holder.count or 1, LEASES_MOST) do
        pcall('DEL', timeout_key(holder.field, i)) -- ends by itself
      end
    end
  end
end

-- Puts back the place that stood first.
local function put_back(place, lease_ms)
  if not _G.pcall(note, KEYS[3], call('LLEN', KEYS[3]), string.match(place, '^(%S+) (.*)$')) then
    return
  end
  pcall('LPUSH', KEYS[3], place)
  -- Where it was the only one, the queue is a new one. It ends like any other, or is none.
  if call('PTTL', KEYS[3]) == -1 and type(pcall('PEXPIRE', KEYS[3], math.max(30000, tonumber(lease_ms)))) ~= 'number' then
    call('LREM', KEYS[3], 0, place)
  end
end

-- Gives the name to the first in the queue that hears it, and if that is a reader, to the readers behind it that may join it: publishes
-- to each client the place with which it was queued, and so the ask that it answers (B3). Returns the length of the first one's lease, or
-- nil if there is none. Where the server does not tell who hears, all in the queue are told to look.
--
-- The commands that may be refused come before a client is told, for a message cannot be taken back. An error comes before
-- those who leave are taken out; after nil the name may be free already.
local function give_to_next(grants)
  local given, reads, shortest = nil, stay, math.huge
  local long = is_long(KEYS[3])
  local place = call('LINDEX', KEYS[3], 0)
  while place do
    local field, client, lease_ms = string.match(place, '^(([^:]*):%S+) (%d+) %d+$')
    if reads and keeps_out(place, grants) then
      break
    end
    -- The place of a lease id that holds is none to give the name to (B4), nor to take it from (S1).
    local heard = field and not hold_of(field) and hears(grants .. client)
    if heard == nil and field then
      for _, waits in ipairs(call('LRANGE', KEYS[3], 0, -1)) do
        pcall('PUBLISH', grants .. (client_in(waits) or ''), '0')
      end
      break
    end
    take_first(KEYS[3], long)
    if heard and not is_given_up(field) then
      if not taken_out then
        take_out()
      end
      if take(field, lease_ms, not reads) then
        break
      end
      -- It must be a holder before it is told so. If no connection hears it, that client is gone.
      local told = pcall('PUBLISH', grants .. client, place)
      if type(told) ~= 'number' or told == 0 then
        drop(field, not reads)
      end
      if type(told) ~= 'number' then
        put_back(place, lease_ms) -- the caller may tell none: those that wait keep their places
        break
      elseif told > 0 then
        given = given or tonumber(lease_ms)
        shortest = math.min(shortest, tonumber(lease_ms))
        if is_writer(field) then
          break
        end
        reads = true
      end
    end
    place = call('LINDEX', KEYS[3], 0)
  end
  if given then
    tell_first(KEYS[3], grants, shortest)
  end
  return given
end

-- '1' wakes all of Redisson's threads that wait in a process. It passes one by that has just asked and is about to wait, which then
-- sleeps until the end of a lease that is no more; '0' wakes one, also such a one.
local function wake_late_comers(channel, before)
  pcall('PUBLISH', channel, (before or '') .. '0')
end

-- Redisson's waiters sleep by the end of a hold of which `before` was left. One of them is told if the name was given to others for less.
local function tell_of_less(channel, given, beside, before)
  if (before == -1 or given < before) and beside then
    wake_late_comers(channel)
  end
end

-- Frees the name for all who listen. Returns an error if that is refused and those who leave hold it still. (If they do
-- not, no error may hide that it is free.)
local function free(channel, writes, turns, beside)
  local done = pcall('PUBLISH', channel, before_number(turns, beside) .. (writes and '1' or '0'))
  if writes then
    wake_late_comers(channel, '+')
  end
  if not taken_out then
    if type(done) ~= 'number' then
      return done
    end
    take_out()
  end
end
