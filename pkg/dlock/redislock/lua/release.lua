-- Removes a claim in any phase and gives a lock that it held to the next. Works at
-- maxmemory: it begins with DEL or ZREM.
-- KEYS lock, fence, bar, queue, waiters
-- ARGV id, bar ms (0: no bar), publish command, gap (1: leave the key free and only
--      tell the next waiter), token that must match ("" : any)
-- Returns {phase found, id, token}.
local lock, fence, bar, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, bar_ms, publish, gap, must = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1', ARGV[5]

local found, token, channel = 'gone', '0', '-'
local value = redis.pcall('GET', lock)
if type(value) == 'string' and owner(value) == id then
  token = token_of(value)
  if must == '' or must == token then
    channel = string.match(value, '^%x+ %d+ %d+ (%S+)')
    redis.call('DEL', lock)
    found = 'held'
  end
elseif must == '' or must == '0' then
  local record = redis.call('HGET', waiters, id)
  if redis.call('ZREM', queue, id) == 1 then
    redis.call('HDEL', waiters, id)
    local deadline
    if record then deadline, channel = string.match(record, '^(%d+) %d+ %d+ (%S+)') end
    if deadline and tonumber(deadline) > clock() then found = 'queued' end
  end
end
if bar_ms > 0 then redis.call('SET', bar, '1', 'PX', bar_ms) end
if found ~= 'gone' and must ~= '' then push(publish, channel, 'gone', lock, id, token) end
if found == 'held' and redis.call('EXISTS', queue) == 1 then
  if gap then
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    local record = first and redis.call('HGET', waiters, first)
    local listener = record and string.match(record, '^%d+ %d+ %d+ (%S+)')
    if listener then push(publish, listener, 'free', lock, first, '0') end
  else
    settle(lock, queue, waiters, fence, publish, clock())
  end
end
return {found, id, token}
