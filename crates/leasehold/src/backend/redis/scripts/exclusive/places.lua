-- exclusive/places.lua: the queue; written in front of the long ways of acquire.lua and release.lua.
--
-- KEYS[2] queue  list  "<owner> <lease_ms> <ask>" of the waiting clients, next first

-- What the keys and channels of our own for this name begin with.
local ours = string.sub(KEYS[2], 1, -#'queue' - 1)

-- Whether a lease id was given up: such an id never holds again (B4).
local function is_given_up(owner)
  return call('EXISTS', ours .. 'gone:' .. owner) == 1
end

-- The owner's place in the queue; nil: it has none.
local function place_of(owner)
  local all = '\n' .. table.concat(call('LRANGE', KEYS[2], 0, -1), '\n')
  local at = string.find(all, '\n' .. owner .. ' ', 1, true)
  return at and string.match(all, '[^\n]+', at)
end

-- Gives the owner a place at the end of the queue. One that has a place keeps it, with the latest ask (B3).
local function line_up(owner, lease_ms, ask, keep_ms)
  local place, wanted = place_of(owner), owner .. ' ' .. lease_ms .. ' ' .. ask
  if not place then
    call('RPUSH', KEYS[2], wanted)
  elseif tonumber(string.match(place, '%d+$')) < tonumber(ask) then
    call('LINSERT', KEYS[2], 'BEFORE', place, wanted)
    call('LREM', KEYS[2], 1, place)
  end
  if call('PTTL', KEYS[2]) < tonumber(keep_ms) then
    call('PEXPIRE', KEYS[2], keep_ms)
  end
end
