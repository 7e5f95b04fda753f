-- exclusive/places.lua: the queue; written behind places.lua, in front of the long ways of acquire.lua and release.lua.
--
-- KEYS[2] queue  list  "<owner> <lease_ms> <ask>" of the waiting clients, next first

-- What the keys and channels of our own for this name begin with.
local ours = string.sub(KEYS[2], 1, -#'queue' - 1)

-- Whether a lease id was given up: such an id never holds again (B4).
local function is_given_up(owner)
  return call('EXISTS', ours .. 'gone:' .. owner) == 1
end

-- The owner has a place in the queue, which lasts for `keep_ms` from now at least.
local function line_up(owner, lease_ms, ask, keep_ms)
  take_place(KEYS[2], owner, lease_ms, ask)
  if call('PTTL', KEYS[2]) < tonumber(keep_ms) then
    call('PEXPIRE', KEYS[2], keep_ms)
  end
end
