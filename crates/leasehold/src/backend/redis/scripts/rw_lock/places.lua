-- rw_lock/places.lua: how a client gets its place in the queue; written behind holders.lua, in front of acquire.lua and release.lua.
--
-- KEYS[3] queue     list    "<field> <lease_ms> <ask>" of the waiting clients, next first

-- Puts a place into the queue: at its end; `ahead`: in front of the first that waits to do the other, to write if it reads; the hold
-- that waits to be upgraded: in front of all, for none of them can have the name before. Returns an error if that is refused.
local function line_up(field, place, ahead)
  if to_upgrade(field) then
    return pcall('LPUSH', KEYS[3], place)
  end
  if ahead then
    for _, there in ipairs(call('LRANGE', KEYS[3], 0, -1)) do
      local other = string.match(there, '^%S+')
      if other and is_writer(other) ~= is_writer(field) and not to_upgrade(other) then
        return pcall('LINSERT', KEYS[3], 'BEFORE', there, place)
      end
    end
  end
  return pcall('RPUSH', KEYS[3], place)
end
