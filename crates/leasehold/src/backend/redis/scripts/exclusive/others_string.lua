-- exclusive/others_string.lua: who else holds a string; written behind refuse.lua.
--
-- KEYS[1] name  string  <owner>, or another library's token; its TTL is the lease

-- The code of a holder that is another owner, 3: none of ours, which tells no client when it leaves; nil: a number stands there.
local function code_of_other()
  local holder = call('GET', KEYS[1])
  if is_permits(holder) then
    return nil
  end
  return string.find(holder, '^%x+%-%x+%-%x+%-%x+%-%x+:%d+$') and 0 or 3
end

-- The holder, and behind it that it holds once; or an error.
local function holders()
  local holder = pcall('GET', KEYS[1])
  if type(holder) == 'table' then
    return refuse(kind, holder)
  end
  if holder and is_permits(holder) then
    return refuse(kind)
  end
  return holder and { holder, '1' } or {}
end
