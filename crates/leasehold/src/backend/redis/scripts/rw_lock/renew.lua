-- rw_lock/renew.lua: extend the leases that are still ours.
--
-- KEYS[i]  name  hash   mode -> read or write; <reader> or <writer>:write -> hold count (Redisson RReadWriteLock)
-- ARGV     runs  bytes  for each run of names with leases of the same length:
--                       lease_ms (0: only look), how many names, and the field of each
--
-- Returns the exceptions: {number of the name, answer, ...} with the answers 0 not ours, -1 a value of another
--         type stands under it; all the others are extended, or still ours
-- Retry   safe: all requests for one lease id ask for the same length, so a later copy sets a later end (B2). The hash
--         of readers is never shortened: others may need it for longer.
--
-- What the keys of the readers' leases begin with is made here: no key stands there, and a node of a cluster that moves the slot refuses a
-- script that names a key which is there and one which is not.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local call, pcall = redis.call, redis.pcall

-- Whether the lease id of `field` holds `name` still, in either of its forms: it was downgraded, and this request is late, or early. If so
-- it lasts for `lease_ms`, till `till`. The writer first: one that reads as well has a reader's field, and no lease of a reader.
local function renew(name, field, lease_ms, till)
  field = string.match(field, '^[^:]*:%d+') or field
  local writes = pcall('HEXISTS', name, field .. ':write')
  if type(writes) ~= 'number' then
    return -1
  end
  if writes == 1 then
    if lease_ms > 0 then
      call('PEXPIREAT', name, till)
    end
    return 1
  end
  if call('HEXISTS', name, field) == 0 then
    return 0
  end
  local braced = string.find(name, '{', 1, true) and name or '{' .. name .. '}'
  local lease = braced .. ':' .. field .. ':rwlock_timeout:1'
  if lease_ms == 0 then
    return call('EXISTS', lease)
  end
  local left = call('PTTL', name)
  if left >= 0 and left < lease_ms then
    call('PEXPIREAT', name, till)
  end
  -- A reader whose lease is over is none.
  return call('PEXPIREAT', lease, till)
end

local exceptions, arg, name = {}, 1, 0
while name < #KEYS do
  local lease_ms = tonumber(ARGV[arg])
  local till = string.format('%d', now + lease_ms)
  local last = name + ARGV[arg + 1]
  arg = arg + 2
  while name < last do
    name = name + 1
    -- One bad name does not keep the others from being renewed.
    local answer = renew(KEYS[name], ARGV[arg], lease_ms, till)
    arg = arg + 1
    if answer ~= 1 then
      exceptions[#exceptions + 1] = name
      exceptions[#exceptions + 1] = answer
    end
  end
end
return exceptions
