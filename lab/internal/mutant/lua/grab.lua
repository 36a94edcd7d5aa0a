-- Takes a lock for a caller, the naive way.
-- KEYS lock, fence, tombstone
-- ARGV id, px (0: no expiry), absolute (1: px is a time), force (1: whoever has it), info,
--      clock (0: tokens do not follow it)
-- Returns the token, or '' if another caller has the lock.
local value = redis.call('GET', KEYS[1])
if redis.call('EXISTS', KEYS[3]) == 1 then return '' end
if value and string.sub(value, 1, 32) == ARGV[1] then
  if ARGV[2] ~= '0' and ARGV[3] ~= '1' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
  return string.match(value, '^%x+%. (%d+) ')
end
if value and ARGV[4] ~= '1' then return '' end
local t = redis.call('TIME')
local token = math.max((t[1] * 1000000 + t[2]) * ARGV[6], (redis.call('GET', KEYS[2]) or 0) + 1)
token = string.format('%.0f', token)
redis.call('SET', KEYS[2], token)
value = ARGV[1] .. '. ' .. token .. ' 1 - ' .. ARGV[5] -- as our own backend stores it, so that the lab can read it
if ARGV[2] == '0' then
  redis.call('SET', KEYS[1], value)
else
  redis.call('SET', KEYS[1], value, ARGV[3] == '1' and 'PXAT' or 'PX', ARGV[2])
end
return token
