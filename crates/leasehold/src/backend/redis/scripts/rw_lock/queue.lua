-- rw_lock/queue.lua: who stands in the queue, and which reader may join those that hold the name; written behind waiting.lua,
-- places.lua and holders.lua, in front of each script that has to know.
--
-- KEYS[1] name      hash    mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- KEYS[3] queue     list    "<field> <lease_ms> <ask>" of the waiting clients, next first
--
-- The rule: a reader joins readers unless a writer stands in the queue before it. A writer whose client hears nothing is gone, and the
-- place of a lease id that holds is worth nothing (B4): these two keep none out. Who asks anew stands behind all.

-- Where our clients are counted that wait beside Redisson's.
local function marker()
  return string.sub(KEYS[3], 1, -#'rw:queue' - 1) .. 'waits'
end

-- Whether a writer's place keeps out the readers behind it; nil: it is none of a writer.
local function keeps_out(place, grants)
  local field, client = string.match(place, '^(([^:]*):%S*:write) %d+ %d+$')
  return field and not hold_of(field) and may_hear(grants .. client)
end

-- Whether a reader that asks anew may join those that hold the name. The places of writers that keep none out go: readers that stand
-- behind such have been waiting in vain, and are told to look.
local function may_join(grants, channel)
  local joins = call('HGET', KEYS[1], 'mode') == 'read'
  local dead, from, many = {}, 0, 1 -- most often the first is such a writer
  local places = joins and call('LRANGE', KEYS[3], 0, 0) or {}
  while joins and #places > 0 do
    for _, place in ipairs(places) do
      local waits = keeps_out(place, grants)
      if waits then
        joins = false
        break
      elseif waits == false then
        dead[#dead + 1] = place
      end
    end
    from, many = from + many, 64
    places = call('LRANGE', KEYS[3], from, from + many - 1)
  end
  for _, place in ipairs(dead) do
    call('LREM', KEYS[3], 0, place)
    pcall('HDEL', places_key(KEYS[3]), (string.match(place, '^%S*')))
  end
  if #dead > 0 then
    pcall('PUBLISH', channel, '1')
  end
  return joins
end
