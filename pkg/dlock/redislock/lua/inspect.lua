-- Returns the claims on a lock, one page of the queue at a time. Writes nothing.
-- KEYS lock, queue, waiters
-- ARGV where the page begins: "-inf", or "(" and the arrival of the last waiter seen
-- Returns {now us, "=" and the value or "" if there is none, pttl, where the next page
-- begins or "" at the end, id, record, id, record...}, the queue in order.
--@common
local lock, queue, waiters = KEYS[1], KEYS[2], KEYS[3]
local PAGE = 500
local now = clock()
local value = redis.call('GET', lock)
local shown = {digits(now), value and '=' .. value or '', redis.call('PTTL', lock), ''}
local page = redis.call('ZRANGE', queue, ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, PAGE, 'WITHSCORES')
local ids = {}
for i = 1, #page, 2 do ids[#ids + 1] = page[i] end
if #ids == 0 then return shown end
if #ids == PAGE then shown[4] = '(' .. page[#page] end
for i, record in ipairs(redis.call('HMGET', waiters, unpack(ids))) do
  shown[#shown + 1] = ids[i]
  shown[#shown + 1] = record or ''
end
return shown
