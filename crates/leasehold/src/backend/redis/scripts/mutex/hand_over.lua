-- mutex/hand_over.lua: the part that release.lua and force_unlock.lua share, written behind waiting.lua, in front of each of
-- them, and of those of the fenced mutex.
--
-- KEYS[1] name   hash   <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue  list   "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[3] gone   string a tombstone's key without the owner it ends with

-- Whether a lease id was given up: such an id never holds again (B4).
local function is_given_up(owner)
  return call('EXISTS', KEYS[3] .. owner) == 1
end

-- Makes `owner` a holder for `lease_ms` from now. False if the server refuses that; then it is none. Call it after
-- `take_out`, which shows that this can be taken back.
local function write(owner, lease_ms)
  if type(pcall('HSET', KEYS[1], owner, 1)) ~= 'number' then
    return false
  end
  if type(pcall('PEXPIRE', KEYS[1], lease_ms)) ~= 'number' then
    call('HDEL', KEYS[1], owner)
    return false
  end
  return true
end

-- The name is not that of these owners any more. In the hash they would stay holders: a second copy of a release would
-- find its owner there, and give away what is the next one's (S2).
local taken_out = false
local function take_out(owners)
  for _, owner in ipairs(owners) do
    call('HDEL', KEYS[1], owner)
  end
  taken_out = true
end

-- Gives the name to the first in the queue that hears it: publishes to its client the place with which it was queued,
-- and so the ask that it answers (B3), with `tokens` behind it if the kind has any. Returns the length of the lease, or nil if
-- there is none; and whether it is over sooner than that of the one that leaves.
--
-- Each command that may be refused comes before a client is told, for a message cannot be taken back. An error comes before
-- those in `from` are taken out; after nil the name may be free already.
local function give_to_next(from, grants, tokens)
  local before = call('PTTL', KEYS[1])
  local place = call('LPOP', KEYS[2])
  while place do
    local owner, client, lease_ms = string.match(place, '^(([^:]*):%S+) (%d+) %d+$')
    if owner and not is_given_up(owner) and hears(grants .. client) then
      if from then
        take_out(from)
        from = nil
      end
      if not write(owner, lease_ms) then
        return nil
      end
      -- It must be the holder before it is told so. If no connection hears it, that client is gone.
      local told = pcall('PUBLISH', grants .. client, place .. (tokens or ''))
      if type(told) == 'number' and told > 0 then
        local left = tonumber(lease_ms)
        tell_first(KEYS[2], grants, left)
        return left, before == -1 or left < before
      end
      call('HDEL', KEYS[1], owner)
    end
    place = call('LPOP', KEYS[2])
  end
  return nil
end

-- Frees the name for all clients that listen. Returns an error if that is refused and the owners hold it still. (If they do
-- not, no error may hide that it is free.)
local function free(channel)
  local done = pcall('PUBLISH', channel, '0')
  if type(done) == 'number' then
    done = pcall('DEL', KEYS[1])
  end
  if type(done) ~= 'number' and not taken_out then
    return done
  end
  return nil
end

-- Whether a place is this owner's.
local function is_place_of(place, owner)
  return string.sub(place, 1, #owner + 1) == owner .. ' '
end
