-- Returns the holder of a lock and the number of waiters. Writes nothing, and does not read
-- the queue.
-- KEYS lock, queue
-- ARGV id of a waiter that is not counted
-- Returns {now us, "=" and the value or "" if there is none, pttl, waiters}.
local t = redis.call('TIME')
local value = redis.call('GET', KEYS[1])
local waiting = redis.call('ZCARD', KEYS[2])
if waiting > 0 and redis.call('ZRANK', KEYS[2], ARGV[1]) then waiting = waiting - 1 end
return {t[1] .. string.sub('00000' .. t[2], -6), value and '=' .. value or '', redis.call('PTTL', KEYS[1]), waiting}
