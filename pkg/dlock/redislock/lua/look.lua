-- Returns one holder of a lock and the number of waiters. Writes nothing, and does not read
-- the queue.
-- KEYS lock, queue, holders
-- ARGV id of a waiter that is not counted
-- Returns {now us, held, pttl, waiters}, see inspect.lua. For a reader or a permit, its id and record follow.
--@common
local t = redis.call('TIME')
local now = t[1] .. string.sub('00000' .. t[2], -6)
local value = redis.pcall('GET', KEYS[1])
local waiting = redis.call('ZCARD', KEYS[2])
if waiting > 0 and redis.call('ZRANK', KEYS[2], ARGV[1]) then waiting = waiting - 1 end
if type(value) == 'table' then
  local mode, failure = mode_of(KEYS[1], value)
  if not mode then return failure end
  local found = redis.call('ZRANGE', KEYS[1], '(' .. now, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  local id = found[1]
  if id == mode then return {now, '', -2, waiting} end
  return {now, '~' .. mode, redis.call('PTTL', KEYS[1]), waiting, id, '=' .. found[2] .. ' ' .. (redis.call('HGET', KEYS[3], id) or '')}
end
return {now, value and '=' .. value or '', redis.call('PTTL', KEYS[1]), waiting}
