-- exclusive/hand_over.lua: how a name that was given back goes on; written behind waiting.lua, places.lua and exclusive/places.lua, in front of the long way of
-- release.lua, and of force_unlock.lua.
--
-- KEYS[1] name   hash   <owner> -> hold count; its TTL is the lease (Redisson RLock); of a plain mutex a string, the owner
-- KEYS[2] queue  list   "<owner> <lease_ms> <ask>" of the waiting clients, next first
local grants = ours .. 'grant:'

-- Where our clients are counted that wait beside Redisson's: those of a mutex and of a fenced one hear the same. A plain mutex has none
-- beside it.
local function marker(channel)
  if kind == 'plain_mutex' then
    return channel
  end
  return (reserve and string.sub(ours, 1, -#'fenced:' - 1) or ours) .. 'waits'
end

-- Gives the free name to the first in the queue that hears it: publishes to its client the place with which it was queued, and so the
-- ask that it answers (B3), with `tokens` behind it. Returns the length of its lease, and its owner; nil: there is none. The queue is
-- `long` or not.
local function give_to_next(tokens, long)
  local place = take_first(KEYS[2], long)
  while place do
    local owner, client, lease_ms = string.match(place, '^(([^:]*):%S+) (%d+) %d+$')
    if owner and not is_given_up(owner) and hears(grants .. client) then
      if take(owner, lease_ms) then
        return nil
      end
      -- It must be the holder before it is told so. If no connection hears it, that client is gone.
      local told = pcall('PUBLISH', grants .. client, place .. tokens)
      if type(told) == 'number' and told > 0 then
        return tonumber(lease_ms), owner
      end
      leave(owner)
    end
    place = take_first(KEYS[2], long)
  end
  return nil
end

-- Passes the free name on: to the first in the queue, in which `waiting` stand; or, where Redisson's waiters have `turns`, all that listen
-- are told. Of `others` that wait so many are `ours`. Returns the length of that one's lease; nil: it is free. `before`: how long the lease of
-- the one that leaves would have lasted.
local function pass_on(channel, others, ours, turns, waiting, before, token_ms)
  local left
  if waiting > 0 and turns == 0 then
    local first, count
    if reserve then
      first, count = reserve(token_ms)
    end
    -- Where the server refuses a token, the name is freed for all.
    if first or not reserve then
      left = give_to_next(first and string.format(' %.0f %d', first, count) or '', waiting > SHORT)
    end
  end
  if left then
    tell_first(KEYS[2], grants, left)
  end
  -- Redisson's waiters sleep by the end of the lease before: if this one is over sooner, they look.
  if not left or others > ours and (before == -1 or left < before) then
    pcall('PUBLISH', channel, before_number(turns, others > ours) .. '0')
  end
  return left
end
