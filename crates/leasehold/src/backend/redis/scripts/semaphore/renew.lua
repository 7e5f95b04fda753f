-- semaphore/renew.lua: remember holds that are still ours for longer.
--
-- KEYS[i]  out   zset   `<client uuid>:<lease id> <count>` of each hold of ours -> until when it is remembered, in ms
-- ARGV     runs  bytes  for each run of holds that are kept equally long: keep_ms (0: only look), how many holds, and each
--
-- Returns the exceptions: {number of the hold, answer, ...} with the answers 0 not there, -1 another type stands under its
--         key; all the others are remembered
-- Retry   safe: an end only moves forward (B2).
local exceptions, arg, key = {}, 1, 0
while key < #KEYS do
  local keep, last = tonumber(ARGV[arg]), key + ARGV[arg + 1]
  arg = arg + 2
  while key < last do
    key = key + 1
    local answer = -1
    if not is_error(pcall('ZCARD', KEYS[key])) then
      local ends_at = remembered(KEYS[key], ARGV[arg])
      answer = ends_at and keep_on(KEYS[key], ARGV[arg], ends_at, keep) or 0
    end
    arg = arg + 1
    if answer < 1 then
      exceptions[#exceptions + 1] = key
      exceptions[#exceptions + 1] = answer
    end
  end
end
return exceptions
