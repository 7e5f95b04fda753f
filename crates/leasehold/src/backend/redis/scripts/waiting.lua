-- waiting.lua: which clients wait beside the calling one, and which hear; written in front of the scripts that pass a lock on.
local call, pcall = redis.call, redis.pcall

-- How many clients besides the calling one wait for the name; how many of these are ours; and how many turns are left to the others.
-- All that wait hear `channel`, and ours hear `marker` as well: Redisson's waiters are the rest. This client has had `holds` in a row,
-- and each of theirs is to have as many as each of ours; negative: one of theirs may listen at a replica, where it is not counted, and
-- has turns too. The fraction goes by lot. Where PUBSUB is not permitted, one of each might wait.
-- Valkey 9.1 answers with a number that cannot be for some counts (8, 15, 16, 29 to 32, 57 to 64 …): then those in the queue do, of
-- which there are `waiting`.
local function count_others(channel, marker, listening, waiting, holds)
  local heard = pcall('PUBSUB', 'NUMSUB', channel, marker)
  if heard.err then
    return 2, 1, 0
  end
  local all, ours = heard[2], heard[4]
  if math.min(all, ours) < 0 or math.max(all, ours) > 1000000 then
    return math.max(waiting, 1), math.max(waiting, 1), 0
  end
  local beside = math.max(all - ours, 0)
  ours = math.max(ours - listening, 0) -- a subscription of its own may be under way
  holds = tonumber(holds)
  local owed = math.abs(holds) * math.max(beside, holds < 0 and 1 or 0)
  if owed > 0 then
    owed = math.floor((owed + call('TIME')[2] % (ours + 1)) / (ours + 1))
  end
  return beside + ours, ours, math.min(owed, 64)
end

-- What a release says before its number on Redisson's channel: so many zeros as turns are left to Redisson's waiters, who read a number all
-- the same; else, if some of them wait, a plus: this was no turn of theirs.
local function before_number(turns, beside)
  return turns > 0 and string.rep('0', turns) or beside and '+' or ''
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
