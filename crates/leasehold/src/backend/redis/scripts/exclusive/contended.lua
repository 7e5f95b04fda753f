-- exclusive/contended.lua: the long way of acquire.lua, where the name is held, clients wait for it, or the lease id was given up. Written
-- behind refuse.lua and hand_over.lua, as a function in front of acquire.lua. Returns nil if the name is free for this owner.
local owner, lease_ms, ask = ARGV[1], tonumber(ARGV[2]), ARGV[3] or '0'
-- In this order (B3, B4): it holds; it was given up; the name is free; its place.
local is_ours, said = holds(KEYS[1], owner)
if type(said) == 'table' then
  return refuse(kind, said)
end
if is_ours then
  local left, first, count = call('PTTL', KEYS[1]), nil, nil
  if reserve then
    first, count = reserve(ARGV[5])
    if not first then
      return count
    end
  end
  if left ~= -1 and left < lease_ms then
    call('PEXPIRE', KEYS[1], ARGV[2])
  end
  left = math.max(left, lease_ms)
  return first and { 1, left, first, count } or left
end
if is_given_up(owner) then
  return { 2, 0 }
end
local ttl = call('PTTL', KEYS[1])
if ttl == -2 then
  -- A client that waits gives a free name to the first in the queue. (One that comes may be faster.)
  local first_client = ask ~= '0' and client_in(call('LINDEX', KEYS[2], 0) or '')
  if first_client and first_client ~= client_in(owner) and hears(grants .. first_client) then
    local first, count
    if reserve then
      first, count = reserve(ARGV[5])
      if not first then
        return count
      end
    end
    line_up(owner, ARGV[2], ask, ARGV[4])
    local left, granted = give_to_next(first and string.format(' %.0f %d', first, count) or '', is_long(KEYS[2]))
    if granted then
      tell_first(KEYS[2], grants, left)
      return granted == owner and { 1, left, first, count } or { 0, left }
    end
  end
  -- An ask without a place may come behind one with it. Who holds the name has none: it would be given the name once more (B4).
  leave_queue(KEYS[2], owner)
  return nil
end
local code = code_of_other()
if not code then
  return refuse(kind)
end
if ask ~= '0' then
  line_up(owner, ARGV[2], ask, ARGV[4])
end
return { code, ttl }
