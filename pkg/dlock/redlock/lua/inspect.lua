-- Returns the claims on a lock as this node has them. Writes nothing.
-- KEYS lock, waiters
-- ARGV echo
-- Returns {echo, now us, "=" and the value or "" if there is none, pttl, id, record, id,
-- record...}.
--@common
local t = redis.call('TIME')
local value = redis.call('GET', KEYS[1])
local shown = {ARGV[1], digits(t[1] * 1000000 + t[2]), value and '=' .. value or '', redis.call('PTTL', KEYS[1])}
for _, word in ipairs(redis.call('HGETALL', KEYS[2])) do shown[#shown + 1] = word end
return shown
