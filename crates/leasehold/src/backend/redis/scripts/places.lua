-- places.lua: who stands in a queue of ours; written behind a local `call`, in front of the scripts that take a place, or leave it.
--
-- queue   list  "<owner> <lease_ms> <ask>" of the waiting clients, next first. Its key ends in ":queue"
-- places  hash  <owner> -> "<lease_ms> <ask>", and "" if it counts; beside a queue of more than SHORT places. Its key ends in ":places"
--
-- A short queue is read. A long one is not, for each request, since that would cost each of those that wait the time of all others: it has
-- a hash beside it. Who is not in a hash that counts has no place (B3): each place is noted before it is taken, and where that is not done,
-- since the queue is short, the hash goes. Who is in it may have no place any more: a client of a version that knows no hash has taken it
-- out. (The places of such clients are theirs to find.) Without the hash, or its "", it is made from the queue.
local SHORT = 32

local function places_key(queue)
  return string.sub(queue, 1, -#'queue' - 1) .. 'places'
end

local function is_long(queue)
  return call('LLEN', queue) > SHORT
end

-- The owner's place in the queue, which is long or not; nil: it has none.
local function place_in(queue, long, owner)
  local key = places_key(queue)
  if long then
    local terms = call('HGET', key, owner)
    if terms or call('HEXISTS', key, '') == 1 then
      return terms and owner .. ' ' .. terms or nil
    end
  end
  local all = call('LRANGE', queue, 0, -1)
  if long then
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
  end
  all = '\n' .. table.concat(all, '\n')
  local at = string.find(all, '\n' .. owner .. ' ', 1, true)
  return at and string.match(all, '[^\n]+', at)
end

local function place_of(queue, owner)
  return place_in(queue, is_long(queue), owner)
end

-- Before the owner takes a place: the hash has it, or there is none.
local function note(queue, long, owner, terms)
  local key = places_key(queue)
  if long then
    call('HSET', key, owner, terms)
    call('PEXPIRE', key, 30000)
  else
    call('DEL', key)
  end
end

-- Gives the owner a place at the end of the queue. One that has a place keeps it, with the latest ask (B3).
local function take_place(queue, owner, lease_ms, ask)
  local long, terms = is_long(queue), lease_ms .. ' ' .. ask
  local place = place_in(queue, long, owner)
  if place and tonumber(string.match(place, '%d+$')) >= tonumber(ask) then
    return
  end
  note(queue, long, owner, terms)
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
