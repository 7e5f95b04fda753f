-- fenced_store/set.lua: set a string.
--
-- KEYS[1] fence    string  the newest fencing token that was seen in a write
-- KEYS[2] key      string  the data
-- ARGV[1] token    integer the writer's token
-- ARGV[2] keep_ms  integer how long the fence outlives its last write; 0: for ever
-- ARGV[3] value    bytes
-- ARGV[4] lasts_ms integer how long the data stays; 0: without an end
--
-- Returns {1, 0}       written
--         {0, newest}  refused: a newer token was seen
-- Error   the data is as it was; the fence may have seen the token.
-- Retry   safe: the same write under the same token again, and none under an older one than was seen.
local goes, answer = passes(ARGV[1], ARGV[2])
if not goes then
  return answer
end
if ARGV[4] == '0' then
  redis.call('SET', KEYS[2], ARGV[3])
else
  redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
end
return { 1, 0 }
