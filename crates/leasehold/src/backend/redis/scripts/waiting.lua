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

-- Whether a client may hear this channel. What PUBLISH counts includes monitors of all channels (PSUBSCRIBE).
local function may_hear(channel)
  local heard = pcall('PUBSUB', 'NUMSUB', channel)
  return heard.err or heard[2] ~= 0
end

-- Wakes those that wait if the lease of those that hold the name now is over in `left` ms, before the one that they were told of, in
-- `before` ms: they sleep until then, or for 12 s if no client was told otherwise, and none would see the holders die (L1).
local function wake_for_less(channel, left, before)
  if left >= 0 and left < 12000 and (before == -1 or left < before) then
    pcall('PUBLISH', channel, '0')
  end
end
