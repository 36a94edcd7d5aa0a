-- Removes a claim in any phase and gives a lock that it held to the next. Works at
-- maxmemory: it begins with DEL or ZREM.
-- KEYS lock, fence, bar, queue, waiters, gap
-- ARGV id, bar ms (0: no bar), publish command, gap ms (0: hand over; else leave the
--      key free for so long and only tell the next waiter), token that must match
--      ("" : any)
-- Returns {phase found, id, token}.
local lock, queue, id, must = KEYS[1], KEYS[4], ARGV[1], ARGV[5]

local found, token, channel, popped = 'gone', '0', '-', nil
local value = redis.pcall('GET', lock)
if type(value) ~= 'string' then value = '' end
if string.sub(value, 1, 32) == id then
  token = string.match(value, '^%x+ (%d+) ') or '0'
  if must == '' or must == token then
    redis.call('DEL', lock)
    found = 'held'
    -- The usual case ends here, before anything else is prepared.
    if must == '' and ARGV[2] == '0' and ARGV[4] == '0' then
      popped = redis.call('ZPOPMIN', queue)
      if not popped[1] then return {found, id, token} end
    end
    channel = string.match(value, '^%x+ %d+ %S+ (%S+)')
  end
end

--@common
local fence, waiters, bar_ms, publish = KEYS[2], KEYS[5], tonumber(ARGV[2]), ARGV[3]

if found == 'gone' and (must == '' or must == '0') and owner(value) ~= id then
  local record = redis.call('HGET', waiters, id)
  if redis.call('ZREM', queue, id) == 1 then
    redis.call('HDEL', waiters, id)
    local deadline
    if record then deadline, channel = string.match(record, '^(%d+) %S+ %d+ (%S+)') end
    if deadline and tonumber(deadline) > clock() then found = 'queued' end
  end
end
if bar_ms > 0 then redis.call('SET', KEYS[3], '1', 'PX', bar_ms) end
if found ~= 'gone' and must ~= '' then push(publish, channel, 'gone', lock, id, token) end
if found == 'held' then
  if ARGV[4] ~= '0' then
    redis.call('SET', KEYS[6], '1', 'PX', ARGV[4])
    local first = redis.call('ZRANGE', queue, 0, 0)[1]
    local record = first and redis.call('HGET', waiters, first)
    local listener = record and string.match(record, '^%d+ %S+ %d+ (%S+)')
    if listener then push(publish, listener, 'free', lock, first, '0') end
  else
    settle(lock, queue, waiters, fence, publish, popped)
  end
end
return {found, id, token}
