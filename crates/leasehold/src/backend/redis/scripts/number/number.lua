-- number/number.lua: the number at a name, which is how many permits are free, or the count of a latch; written in front of the scripts
-- of these kinds.
--
-- KEYS[1] name  string  the number (Redisson RSemaphore, RPermitExpirableSemaphore, RCountDownLatch)
local call, pcall = redis.call, redis.pcall

local function is_error(reply)
  return type(reply) == 'table' and reply.err ~= nil
end

local function tell(channel, number, before)
  return pcall('PUBLISH', channel, (before or '') .. string.format('%d', number))
end

-- The number, 0 if there is none; nil and an error if the name is not of this kind.
local function read_number(kind)
  local number = pcall('GET', KEYS[1])
  if is_error(number) then
    return nil, refuse(kind, number)
  end
  number = tonumber(number or '0')
  local refused = not number and refuse(kind) or refuse_other_number(kind)
  return not refused and number or nil, refused
end

-- The answer to a request that was carried out before; nil: it was not.
local function told_before(done, kept_ms)
  local told = call('GET', done)
  if told then
    call('PEXPIRE', done, kept_ms) -- a request that was sent again may be late itself
  end
  return told
end

-- How many clients listen; -1: not known (PUBSUB is not permitted; Valkey 9.1 miscounts some numbers).
local function listeners(channel)
  local heard = pcall('PUBSUB', 'NUMSUB', channel)
  return (is_error(heard) or heard[2] < 0 or heard[2] > 1000000) and -1 or heard[2]
end
