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

-- A key stands for every argument: the server looks for the keys among them, and does not count them.
local function may(command)
  for _, key in ipairs(keys) do
    if redis.acl_check_cmd(command, key, key, key, key, key) then
      return true
    end
  end
  return false
end

for command in string.gmatch(redis.acl_check_cmd and ARGV[1] or '', '%u+') do
  local is_known, is_permitted = pcall(may, command)
  if not is_known then
    table.insert(unknown, command)
  elseif not is_permitted then
    table.insert(refused, command)
  end
end
return { refused, unknown }
