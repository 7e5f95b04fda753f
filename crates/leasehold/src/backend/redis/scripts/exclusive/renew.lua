-- exclusive/renew.lua: extend the leases that are still ours.
--
-- KEYS[i]  name  hash   <owner> -> hold count; its TTL is the lease (Redisson RLock); of a plain mutex a string, the owner
-- ARGV     runs  bytes  for each run of names with leases of the same length:
--                       lease_ms (0: only look), how many names, and the owner of each: <client uuid>:<lease id>
--
-- Returns the exceptions: {number of the name, answer, ...} with the answers 0 not ours, -1 a value of another
--         type stands under it; all the others are extended, or still ours
-- Retry   safe: all requests for one lease id ask for the same length, so a later copy sets a later end (B2).
--
-- The end is worked out once per run, for PEXPIRE would do it again for each name, and write the command anew.
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local exceptions, arg, name = {}, 1, 0
while name < #KEYS do
  local extends = ARGV[arg] ~= '0'
  local till = string.format('%d', now + ARGV[arg])
  local last = name + ARGV[arg + 1]
  arg = arg + 2
  while name < last do
    name = name + 1
    -- One bad name does not keep the others from being renewed.
    local is_ours, said = holds(KEYS[name], ARGV[arg])
    arg = arg + 1
    if not is_ours then
      exceptions[#exceptions + 1] = name
      exceptions[#exceptions + 1] = type(said) == 'table' and -1 or 0
    elseif extends then
      call('PEXPIREAT', KEYS[name], till)
    end
  end
end
return exceptions
