-- exclusive/released.lua: the long way of release.lua, where clients wait or this client goes on. Written behind hand_over.lua, as a function
-- in front of release.lua.
local owner, channel, next_owner = ARGV[1], ARGV[2], ARGV[7] or ''
if (ARGV[3] or '0') ~= '0' then
  pcall('SET', ours .. 'gone:' .. owner, '1', 'PX', ARGV[3])
end

-- The answer that `next` holds the name, or an error.
local function kept(left)
  if not reserve then
    return { 3, left }
  end
  local first, count = reserve(ARGV[5])
  return first and { 3, left, first, count } or count
end

local waiting, before = call('LLEN', KEYS[2]), call('PTTL', KEYS[1])
if not leave(owner) then
  local waited = waiting > 0 and leave_queue(KEYS[2], owner)
  if next_owner ~= '' and holds(KEYS[1], next_owner) then
    return kept(before)
  end
  if waited then
    tell_first(KEYS[2], grants, before)
  end
  return -1
end

local others, of_ours, turns = count_others(channel, marker(channel), ARGV[4] or 0, waiting, ARGV[6] or 1)
-- B4: a late copy of this release must not revive a `next` that was given up meanwhile.
if next_owner ~= '' and waiting + of_ours + turns == 0 and not is_given_up(next_owner) then
  local answer = kept(tonumber(ARGV[8]))
  if not answer.err and not take(next_owner, ARGV[8]) then
    return answer
  end
end
local left = pass_on(channel, others, of_ours, turns, waiting, before, ARGV[5])
return left and { 2, left } or { 1, others, turns }
