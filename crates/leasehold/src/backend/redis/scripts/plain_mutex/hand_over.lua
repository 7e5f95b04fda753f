-- plain_mutex/hand_over.lua: the part that release.lua and force_unlock.lua share, written behind waiting.lua, in front of each of
-- them.
--
-- KEYS[1] name   string  <owner>, or another library's token; its TTL is the lease
-- KEYS[2] queue  list    "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[3] gone   string  a tombstone's key without the owner it ends with

-- Whether a lease id was given up: such an id never holds again (B4).
local function is_given_up(owner)
  return call('EXISTS', KEYS[3] .. owner) == 1
end

-- Makes `owner` the holder for `lease_ms` from now, instead of the one that leaves. False if the server refuses that.
local is_taken = false
local function write(owner, lease_ms)
  local done = pcall('SET', KEYS[1], owner, 'PX', lease_ms)
  is_taken = is_taken or done.err == nil
  return done.err == nil
end

-- Gives the name to the first in the queue that hears it: publishes to its client the place with which it was queued,
-- and so the ask that it answers (B3). Returns the length of the lease, or nil if there is none: then call `free`.
local function give_to_next(grants)
  local before = call('PTTL', KEYS[1])
  local place = call('LPOP', KEYS[2])
  while place do
    local owner, client, lease_ms = string.match(place, '^(([^:]*):%S+) (%d+) %d+$')
    if owner and not is_given_up(owner) and hears(grants .. client) then
      if not write(owner, lease_ms) then
        return nil
      end
      -- It must be the holder before it is told so. If no connection hears it, that client is gone.
      local told = pcall('PUBLISH', grants .. client, place)
      if type(told) == 'number' and told > 0 then
        local left = tonumber(lease_ms)
        tell_first(KEYS[2], grants, left)
        return left, before == -1 or left < before
      end
    end
    place = call('LPOP', KEYS[2])
  end
  return nil
end

-- Frees the name for all clients that listen. Returns an error if that is refused and the one that leaves holds it still. (If
-- it does not, a client that is gone does, and no error may hide that.)
local function free(channel)
  local done = pcall('PUBLISH', channel, '0')
  if type(done) == 'number' or is_taken then
    done = pcall('DEL', KEYS[1])
  end
  if type(done) ~= 'number' and not is_taken then
    return done
  end
  return nil
end

-- Whether a place is this owner's.
local function is_place_of(place, owner)
  return string.sub(place, 1, #owner + 1) == owner .. ' '
end
