-- waiting.lua: which clients wait beside the calling one, and which hear; written in front of the scripts that pass a lock on.
local call, pcall = redis.call, redis.pcall

-- How many clients besides the calling one wait for the name, of which `waiting` stand in the queue. Where PUBSUB is not
-- permitted, one might. Valkey 9.1 answers with a number that cannot be for some counts (8, 15, 16, 29 to 32, 57 to 64 …): then those
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

-- Whether the name goes to one of our queue, in which `waiting` of the `others` that wait stand. Those beside it (Redisson's
-- waiters, or clients of another database) race for a name that is freed: each side gets its share of the turns.
local function is_queues_turn(others, waiting)
  if others <= waiting then
    return true
  end
  return waiting > 0 and call('TIME')[2] % others < waiting
end

-- Whether the name stays with the client that gives it back, for the next of its tasks (`wish`, 1: if no other client waits; 2: if none
-- stands in the queue, since those beside it have had the name for longer).
local function stays(wish, others, waiting)
  return waiting == 0 and (wish == '2' or wish == '1' and others <= 0)
end

-- Whether a client hears this channel; nil: the server does not tell (PUBSUB is not permitted). Then no name is given away by a message:
-- PUBLISH may count none where a client on a replica hears it, and the next would be given the name as well (S1). What PUBLISH counts
-- includes monitors of all channels (PSUBSCRIBE).
local function hears(channel)
  local heard = pcall('PUBSUB', 'NUMSUB', channel)
  if heard.err then
    return nil
  end
  return heard[2] ~= 0
end

local function may_hear(channel)
  return hears(channel) ~= false
end

-- The client of a place, or of an owner.
local function client_in(place)
  return string.match(place, '^([^: ]*):')
end

-- Tells the first in the queue that hears it how long the lock is held, in `left` ms, if it does not look before by itself; -2: no client
-- holds it. The first watches the holder, for all: it would be the next to have the lock (L1). A lease without an end (-1) is not watched.
-- Those in front of it that hear nothing are gone: the next hand-over takes them out.
local function tell_first(queue, grants, left)
  if left == -1 or left >= 12000 then
    return
  end
  local message = string.format('%d', math.max(left, 0))
  local from, many = 0, 1 -- most often the very first hears it
  repeat
    local places = call('LRANGE', queue, from, from + many - 1)
    for _, place in ipairs(places) do
      local client = client_in(place)
      if client and pcall('PUBLISH', grants .. client, message) ~= 0 then
        return -- it was told, or none may be
      end
    end
    local is_last = #places < many
    from, many = from + many, 64
  until is_last
end
