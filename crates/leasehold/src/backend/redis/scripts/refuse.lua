-- refuse.lua: the answer about a name that is no lock of the kind that was asked for; written in front of the scripts that give it.

-- Whether a string is the number of a semaphore's permits, or a latch's count. The token of another library's lock may be a number, too, but such
-- a lock has an end.
local function is_permits(value)
  return #value < 12 and string.find(value, '^%-?%d+$') ~= nil and redis.call('PTTL', KEYS[1]) == -1
end

-- The kind whose permits are out beside a number, or without one, if it is not `asked`; nil if none are, or that may not be looked at.
-- Redisson's wire tells one number from another by nothing else.
local function number_of_another(asked)
  local braced = string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}'
  local is_leased = asked ~= 'leased_semaphore' and redis.pcall('EXISTS', braced .. ':timeout') == 1
  return is_leased and 'leased_semaphore' or nil
end

-- Names the kind that was asked for, and what stands under the name, as far as that may be looked at. A `refusal` of another
-- sort, such as of a right, is passed on.
local function refuse(asked, refusal)
  if refusal and not string.find(refusal.err, 'WRONGTYPE', 1, true) then
    return refusal
  end
  local found, is = redis.pcall('TYPE', KEYS[1]).ok, nil
  local value = found == 'string' and redis.pcall('GET', KEYS[1])
  if type(value) == 'string' and is_permits(value) then
    is = number_of_another(asked)
    found = 'number, as a semaphore or a latch does'
  elseif type(value) == 'string' then
    is = 'plain_mutex'
  elseif found == 'hash' then
    is = redis.pcall('HEXISTS', KEYS[1], 'mode') == 1 and 'rw_lock' or 'mutex'
  end
  local words = 'holds a ' .. (found or 'value of another type') .. ', and not a '
  if is == asked then
    words = 'has another type under one of its keys, and cannot be used as a '
  elseif is then
    words = 'is held as a ' .. is .. ', and not as a '
  end
  return redis.error_reply('WRONGTYPE the name ' .. words .. asked)
end

-- The answer to one that asks for a number, if another kind's stands there.
local function refuse_other_number(asked)
  local is = number_of_another(asked)
  return is and redis.error_reply('WRONGTYPE the name is held as a ' .. is .. ', and not as a ' .. asked)
end
