-- mutex/hand_over.lua: the part that release.lua and force_unlock.lua share, written in front of each of them.
--
-- KEYS[1] name   hash   <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- KEYS[2] queue  list   "<owner> <lease_ms> <ask>" of the waiting clients, next first
-- KEYS[3] gone   string a tombstone's key without the owner it ends with
local call, pcall = redis.call, redis.pcall

-- Whether a lease id was given up: such an id never holds again (B4).
local function is_given_up(owner)
  return call('EXISTS', KEYS[3] .. owner) == 1
end

-- Writes one more owner into the hash, until the old ones are taken out. False if the server has no memory for it.
local function write(owner)
  return type(pcall('HSET', KEYS[1], owner, 1)) == 'number'
end

-- How many clients besides the calling one wait for the name, of which `waiting` stand in the queue. Where PUBSUB is not
-- permitted, one might. Valkey 9.1 answers with a number that cannot be for some counts (8, 15, 16, 29 to 32): then those
-- in the queue.
local function count_others(channel, listening, waiting)
  local heard = pcall('PUBSUB', 'NUMSUB', channel)
  if heard.err then
    return 1
  end
  local count = heard[2]
  if count < 0 or count > 1000000 then
    return math.max(waiting, 1)
  end
  return count - listening
end

-- Whether a client may hear this channel. What PUBLISH counts includes monitors of all channels (PSUBSCRIBE).
local function may_hear(channel)
  local heard = pcall('PUBSUB', 'NUMSUB', channel)
  return heard.err or heard[2] ~= 0
end

-- The name is `owner`'s from now on, and not that of those in `from` any more.
local function pass_on(from, lease_ms)
  call('HDEL', KEYS[1], unpack(from))
  call('PEXPIRE', KEYS[1], lease_ms)
end

-- Gives the name to the first in the queue that hears it: publishes to its client the place with which it was queued,
-- and so the ask that it answers (B3). Returns the length of the lease, or nil if there is none.
local function give_to_next(from, grants)
  local place = call('LINDEX', KEYS[2], 0)
  while place do
    local owner, client, lease_ms = string.match(place, '^(([^:]*):%S+) (%d+) %d+$')
    if owner and not is_given_up(owner) and may_hear(grants .. client) then
      if not write(owner) then
        return nil
      end
      -- It must be the holder before it is told so. If nobody hears it, that client is gone.
      local told = pcall('PUBLISH', grants .. client, place)
      if type(told) == 'number' and told > 0 then
        call('LPOP', KEYS[2])
        pass_on(from, lease_ms)
        return tonumber(lease_ms)
      end
      call('HDEL', KEYS[1], owner)
    end
    call('LPOP', KEYS[2])
    place = call('LINDEX', KEYS[2], 0)
  end
  return nil
end

-- Whether a place is this owner's.
local function is_place_of(place, owner)
  return string.sub(place, 1, #owner + 1) == owner .. ' '
end
