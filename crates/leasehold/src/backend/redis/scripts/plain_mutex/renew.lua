-- plain_mutex/renew.lua: extend the leases that are still ours.
--
-- KEYS[i]  name  string  <owner>, or another library's token; its TTL is the lease
-- ARGV     runs  bytes   for each run of names with leases of the same length:
--                        lease_ms (0: only look), how many names, and the owner of each: <client uuid>:<lease id>
--
-- Returns the exceptions: {number of the name, answer, ...} with the answers 0 not ours, -1 a value of another
--         type stands under it; all the others are extended, or still ours
-- Retry   safe: all requests for one lease id ask for the same length, so a later copy sets a later end (B2).
--
-- The end is worked out once per run, for PEXPIRE would do it again for each name, and write the command anew.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local call, pcall = redis.call, redis.pcall
local exceptions, arg, name = {}, 1, 0
while name < #KEYS do
  local extends = ARGV[arg] ~= '0'
  local till = string.format('%d', now + ARGV[arg])
  local last = name + ARGV[arg + 1]
  arg = arg + 2
  while name < last do
    name = name + 1
    -- pcall, so that one bad name does not keep the others from being renewed.
    local holder = pcall('GET', KEYS[name])
    if holder == ARGV[arg] then
      if extends then
        call('PEXPIREAT', KEYS[name], till)
      end
    else
      exceptions[#exceptions + 1] = name
      exceptions[#exceptions + 1] = type(holder) == 'table' and -1 or 0
    end
    arg = arg + 1
  end
end
return exceptions
