-- mutex/renew.lua: extend the leases that are still ours.
--
-- KEYS[i]     name      hash    <owner> -> hold count; its TTL is the lease (Redisson RLock)
-- ARGV[2i-1]  owner     bytes   <client uuid>:<lease id>
-- ARGV[2i]    lease_ms  integer at least 1
--
-- Returns one answer per name: 1 extended, 0 not ours, -1 somebody wrote another type under it
-- Retry   safe: a lease is extended from when the last copy arrives.
local answers = {}
for i, name in ipairs(KEYS) do
  -- pcall, so that one bad name does not keep the others from being renewed.
  local ours = redis.pcall('HEXISTS', name, ARGV[2 * i - 1])
  if ours == 1 then
    redis.call('PEXPIRE', name, ARGV[2 * i])
    answers[i] = 1
  elseif ours == 0 then
    answers[i] = 0
  else
    answers[i] = -1
  end
end
return answers
