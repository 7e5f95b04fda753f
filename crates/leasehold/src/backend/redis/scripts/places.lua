-- places.lua: who stands in a queue of ours; written behind a local `call`, in front of the scripts that take a place, or leave it.
--
-- queue   list  "<owner> <lease_ms> <ask>" of the waiting clients, next first. Its key ends in ":queue"
-- places  hash  <owner> -> "<lease_ms> <ask>", and "" if it counts; beside a queue of more than SHORT places. Its key ends in ":places"
--
-- A short queue is read. A long one is not, for each request, since that would cost each of those that wait the time of all others: it has
-- a hash beside it. Who is not in a hash that counts has no place (B3): each place is noted before it is taken, and where that is not done,
-- since the queue is short, the hash of a longer one goes before the queue is long again. Who is in it may have no place any more: a client of
-- a version that knows no hash has taken it out. Without the hash, or its "", it is made from the queue.
local SHORT = 32

local function places_key(queue)
  return string.sub(queue, 1, -#'queue' - 1) .. 'places'
end

local function is_long(queue)
  return call('LLEN', queue) > SHORT
end

-- The owner's place in the queue; nil: it has none. And how many places there are.
local function place_of(queue, owner)
  -- Most queues are very short, and one call reads them.
  local all = call('LRANGE', queue, 0, 7)
  local many = #all > 7 and call('LLEN', queue) or #all
  if many > SHORT then
    local key = places_key(queue)
    local terms = call('HGET', key, owner)
    if terms or call('HEXISTS', key, '') == 1 then
      return terms and owner .. ' ' .. terms or nil, many
    end
    all = call('LRANGE', queue, 0, -1)
    local fields, done = {}, nil
    for i, place in ipairs(all) do
      fields[#fields + 1], fields[#fields + 2] = string.match(place, '^(%S+) (.*)$')
      if i == #all then
        fields[#fields + 1], fields[#fields + 2] = '', '1'
      end
      if #fields > 1000 or i == #all then
        done = pcall('HSET', key, unpack(fields))
        if type(done) ~= 'number' then
          break -- there is no memory: then the queue is read each time
        end
        pcall('PEXPIRE', key, 30000)
        fields = {}
      end
    end
  elseif many > 7 then
    all = call('LRANGE', queue, 0, -1)
  end
  all = '\n' .. table.concat(all, '\n')
  local at = string.find(all, '\n' .. owner .. ' ', 1, true)
  return at and string.match(all, '[^\n]+', at), many
end

-- Before the owner takes a place beside so many others: the hash has it, or there is none when the queue is long.
local function note(queue, others, owner, terms)
  if others > SHORT then
    local key = places_key(queue)
    call('HSET', key, owner, terms)
    call('PEXPIRE', key, 30000)
  elseif others >= SHORT / 2 then
    call('DEL', places_key(queue))
  end
end

-- Gives the owner a place at the end of the queue. One that has a place keeps it, with the latest ask (B3).
local function take_place(queue, owner, lease_ms, ask)
  local terms, place, others = lease_ms .. ' ' .. ask, place_of(queue, owner)
  if place and tonumber(string.match(place, '%d+$')) >= tonumber(ask) then
    return
  end
  note(queue, others, owner, terms)
  if not place then
    call('RPUSH', queue, owner .. ' ' .. terms)
  elseif call('LINSERT', queue, 'BEFORE', place, owner .. ' ' .. terms) > 0 then
    call('LREM', queue, 1, place)
  else
    call('DEL', places_key(queue)) -- it is not as the queue is
    return take_place(queue, owner, lease_ms, ask)
  end
end

-- Takes the owner's place out of the queue. Whether it had one.
local function leave_queue(queue, owner)
  local place = place_of(queue, owner)
  if place and call('LREM', queue, 0, place) == 0 then
    call('DEL', places_key(queue)) -- as above
    return leave_queue(queue, owner)
  elseif place then
    pcall('HDEL', places_key(queue), owner)
  end
  return place ~= nil
end

-- The place that stands first, taken out of a queue that was long or not; false: none is left.
local function take_first(queue, long)
  local place = call('LPOP', queue)
  if place and long then
    pcall('HDEL', places_key(queue), (string.match(place, '^%S*')))
  end
  return place
end
