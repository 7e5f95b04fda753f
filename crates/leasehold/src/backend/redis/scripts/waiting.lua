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

-- Whether a client listens on the channel beside the calling one and those of `places`, which stood in our queue: one of Redisson's, or
-- one that waits for another kind or in another database. True where the server miscounts. The places of the dead count for nothing.
local function is_heard_beside(places, owner, channel, listening, grants)
  local heard = pcall('PUBSUB', 'NUMSUB', channel)
  if heard[2] < 0 or heard[2] > 1000000 then
    return true
  end
  local asked, inboxes = { [client_in(owner) or ''] = true }, {}
  for _, place in ipairs(places) do
    local client = client_in(place)
    if client and not asked[client] then
      asked[client] = true
      inboxes[#inboxes + 1] = grants .. client
    end
  end
  local beside = heard[2] - listening
  if #inboxes > 1000 or beside <= 0 then
    return beside > 0
  end
  local living = #inboxes > 0 and pcall('PUBSUB', 'NUMSUB', unpack(inboxes)) or {}
  for i = 2, #living, 2 do
    if living[i] ~= 0 then
      beside = beside - 1
    end
  end
  return beside > 0
end

-- Tells clients in the queue to look: the one at `first` and those behind it, until `most` have heard it. Whether there is any.
local function tell_to_look(queue, grants, first, most)
  local asked, at, told = {}, 0, 0
  for from = 0, 65535, 64 do
    local places = call('LRANGE', queue, from, from + 63)
    for _, place in ipairs(places) do
      local client = client_in(place)
      if client and not asked[client] then
        asked[client], at = true, at + 1
        if at >= first then
          local heard = pcall('PUBLISH', grants .. client, '0')
          told = told + (type(heard) == 'number' and math.min(heard, 1) or 0)
          if told >= most then
            return true
          end
        end
      end
    end
    if #places < 64 then
      break
    end
  end
  return at > 0
end

-- Waiters sleep until the end of the lease that they were told of, or for 12 s unless their client was told otherwise. If the lease of a
-- holder is over sooner, in `left` ms and not in `before`, none of them would see it die (L1): so the first four clients in the queue
-- that hear it are told to look. Not all: each of them passes the name on to the one whose turn it is. Those that look learn each end
-- from then on. When some of them are served or leave (`moved` places are gone), those that come to stand among the four are told in
-- their place, for as long as others sleep by the end of before: that long `looks` lasts. Where there is no holder (-2), one of those that
-- had looked has left: the next looks.
-- True if the lease is over sooner than the one before: Redisson's waiters sleep by that one, however long it is.
local function wake_for_less(queue, grants, left, before, moved, looks)
  if left == -2 then
    tell_to_look(queue, grants, 1, 1)
    return false
  end
  local is_less = left >= 0 and left < math.huge and (before == -1 or left < before)
  if left < 0 or left >= 12000 then
    return is_less
  end
  looks = looks or queue .. ':looks'
  local lasts = pcall('PTTL', looks)
  lasts = type(lasts) == 'number' and lasts or -2
  if is_less then
    lasts = math.max(lasts, before == -1 and 12000 or math.min(before, 12000))
  end
  local first = is_less and 1 or math.max(5 - moved, 1)
  if lasts <= left or first > 4 then
    return is_less
  end
  local any = tell_to_look(queue, grants, first, 5 - first)
  if is_less and any then
    pcall('SET', looks, '1', 'PX', lasts)
  end
  return is_less
end
