-- fenced_store/fence.lua: the guard of data; written in front of the scripts that write it.
--
-- KEYS[1] fence  string  the newest fencing token that was seen in a write

-- Lets a write under this token through, and remembers the token; `keep_ms`: for how long at least, 0: for ever. Returns
-- true; or false and the answer of the script, and nothing was changed.
local function passes(token, keep_ms)
  local seen = redis.pcall('GET', KEYS[1])
  if type(seen) == 'table' then
    return false, seen
  end
  local newest = tonumber(seen or '0')
  if not newest then
    return false, redis.error_reply('ERR the key of the fence holds no token: ' .. KEYS[1])
  end
  if newest > tonumber(token) then
    return false, { 0, newest }
  end
  local left = seen and redis.call('PTTL', KEYS[1])
  local done
  if keep_ms == '0' or left == -1 then
    done = redis.pcall('SET', KEYS[1], token)
  else
    done = redis.pcall('SET', KEYS[1], token, 'PX', math.max(tonumber(keep_ms), left or 0))
  end
  if done.err then
    return false, done
  end
  return true
end
