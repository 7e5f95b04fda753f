-- exclusive/tokens.lua: fencing tokens for a grant; written behind holder_hash.lua, in front of the steps of the fenced mutex.
--
-- KEYS[3] token  string  the last token that was given or reserved (Redisson RFencedLock, which gives the next one)

kind = 'fenced_mutex'

-- Reserves tokens for a holder, and for the holders that come after it in its process without asking. They are larger than
-- all before; those of later grants are larger still, wherever they are made. `keep_ms`: for how long the key lasts then, if
-- it has an end or is new; 0: for ever. Returns the first and how many; or nil and the error, and nothing was changed.
function reserve(keep_ms)
  local time = call('TIME')
  local now = time[1] * 1000000 + time[2]
  local text = pcall('GET', KEYS[3])
  if type(text) == 'table' then
    return nil, text
  end
  local last = tonumber(text or '0')
  -- Larger numbers are not exact in a script (2^53).
  if not last or last % 1 ~= 0 or last < 0 or last > 9007199254740000 then
    return nil, redis.error_reply('ERR the key of the fencing tokens holds no token: ' .. KEYS[3])
  end
  local first = math.max(last + 1, now)
  -- If the key is lost, the clock goes on where it was. So tokens do not run ahead of it, but by a millisecond.
  local count = first <= now + 1000 and 65 or 1
  local till = string.format('%.0f', first + count - 1)
  local left = text and call('PTTL', KEYS[3])
  local done
  if keep_ms == '0' or left == -1 then
    done = pcall('SET', KEYS[3], till)
  else
    done = pcall('SET', KEYS[3], till, 'PX', math.max(tonumber(keep_ms), left or 0))
  end
  if done.err then
    return nil, done
  end
  return first, count
end
