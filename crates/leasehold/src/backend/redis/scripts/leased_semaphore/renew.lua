-- leased_semaphore/renew.lua: extend the holds that are still ours, with all their permits.
--
-- KEYS[i]  out   zset   the id of each permit that is out -> its end in ms; {name}:timeout
-- ARGV     runs  bytes  for each run of holds with leases of the same length: lease_ms (0: only look), how many holds, and
--                       of each the id of its first permit and how many permits it has
--
-- Returns the exceptions: {number of the hold, answer, ...} with the answers 0 not ours, or not all of it, -1 it could not
--         be extended so far (another type under its key; an end of the whole semaphore); all the others are extended
-- Retry   safe: an end only moves forward (B2).

-- What is left of a hold then; 0 if it is not there, nil if that cannot be said.
local function extend(out, first, count, lease)
  if is_error(pcall('ZCARD', out)) then
    return nil
  end
  local ends, there, earliest = look(out, first, count)
  if there < count then
    return 0
  end
  return move_forward(out, first, ends, count, earliest, now + lease)
end

local exceptions, arg, key = {}, 1, 0
while key < #KEYS do
  local lease, last = tonumber(ARGV[arg]), key + ARGV[arg + 1]
  arg = arg + 2
  while key < last do
    key = key + 1
    local left = extend(KEYS[key], ARGV[arg], tonumber(ARGV[arg + 1]), lease)
    arg = arg + 2
    if not left or left == 0 or left < lease then
      exceptions[#exceptions + 1] = key
      exceptions[#exceptions + 1] = left == 0 and 0 or -1
    end
  end
end
return exceptions
