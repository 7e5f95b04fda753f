-- waiting.lua: which clients wait beside the calling one, and which hear; written in front of the scripts that pass a lock on.
local call, pcall = redis.call, redis.pcall

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

-- Whether a client may hear this channel. What PUBLISH counts includes monitors of all channels (PSUBSCRIBE).
local function may_hear(channel)
  local heard = pcall('PUBSUB', 'NUMSUB', channel)
  return heard.err or heard[2] ~= 0
end

-- Waiters sleep until the end of the lease that they were told of, or for 12 s unless their client was told otherwise. If the lease of a
-- holder is over sooner, in `left` ms and not in `before`, none of them would see it die (L1): so the first four clients in the queue
-- that hear it are told to look. Not all: each of them passes the name on to the one whose turn it is. Those that look learn each end
-- from then on. When some of them are served or leave (`moved` places are gone), those that come to stand among the four are told in
-- their place, for as long as others sleep by the end of before: that long `looks` lasts.
-- True if the lease is over sooner than the one before.
local function wake_for_less(queue, grants, left, before, moved, looks)
  if left < 0 or left >= 12000 then
    return false
  end
  looks = looks or queue .. ':looks'
  local is_less = before == -1 or left < before
  local lasts = pcall('PTTL', looks)
  lasts = type(lasts) == 'number' and lasts or -2
  if is_less then
    lasts = math.max(lasts, before == -1 and 12000 or math.min(before, 12000))
  end
  local first = is_less and 1 or math.max(5 - moved, 1)
  if lasts <= left or first > 4 then
    return is_less
  end
  local asked, at, told = {}, 0, 0
  for _, place in ipairs(call('LRANGE', queue, 0, 63)) do
    local client = string.match(place, '^([^: ]*):')
    if client and not asked[client] then
      asked[client], at = true, at + 1
      if at >= first then
        local heard = pcall('PUBLISH', grants .. client, '0')
        told = told + (type(heard) == 'number' and math.min(heard, 1) or 0)
        if told > 4 - first then
          break
        end
      end
    end
  end
  if is_less and at > 0 then
    pcall('SET', looks, '1', 'PX', lasts)
  end
  return is_less
end
