-- Shows the claims on a lock. Writes nothing.
-- KEYS lock, queue, waiters
-- Returns {now us, "=" and the value or "" if there is none, pttl, id, record, id,
-- record...}, the queue in order.
--@common
local lock, queue, waiters = KEYS[1], KEYS[2], KEYS[3]
local now = clock()
local value = redis.call('GET', lock)
local shown = {digits(now), value and '=' .. value or '', redis.call('PTTL', lock)}
for _, id in ipairs(redis.call('LRANGE', queue, 0, -1)) do
  shown[#shown + 1] = id
  shown[#shown + 1] = redis.call('HGET', waiters, id) or ''
end
return shown
