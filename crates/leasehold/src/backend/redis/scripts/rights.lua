-- rights.lua: which commands the user of this connection may not call with any of some keys. Those leave no entry in `ACL LOG`.
--
-- KEYS              bytes  the keys of a script: the server refuses this one, too, if the user may not touch them
-- ARGV[1] commands  bytes  their names, with spaces between them
-- ARGV[2] key       bytes  without KEYS: a key that the user may be allowed less with than with those of its locks
--
-- Returns {refused, unknown}: those that the user may not call, and those that the server does not know. Both are empty if the server is
--         older than Redis 7.0, and cannot tell.
-- Error   nothing is changed.
-- Retry   safe: it only asks.
local keys, refused, unknown = #KEYS > 0 and KEYS or { ARGV[2] }, {}, {}

-- Whether the user may call this command with any of the keys; nil: the server does not know it. A key stands for every argument: the server
-- looks for the keys among them. Since 2026 (redis/redis#14847) it wants as many as the command takes, so fewer are tried, too.
local function may(command)
  local is_known, is_right, is_permitted
  for _, key in ipairs(keys) do
    local asked = { command, key, key, key, key, key }
    repeat
      is_right, is_permitted = pcall(redis.acl_check_cmd, unpack(asked))
      asked[#asked] = nil
    until is_right or #asked == 0
    if is_right and is_permitted then
      return true
    end
    is_known = is_known or is_right
  end
  if is_known then
    return false
  end
end

for command in string.gmatch(redis.acl_check_cmd and ARGV[1] or '', '%u+') do
  local is_permitted = may(command)
  if is_permitted == nil then
    table.insert(unknown, command)
  elseif not is_permitted then
    table.insert(refused, command)
  end
end
return { refused, unknown }
