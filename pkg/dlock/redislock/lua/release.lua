-- Removes a claim in any phase and gives a lock that it held to the next. Works at
-- maxmemory: its first write is one that is always allowed.
-- KEYS lock, fence, queue, waiters and, if there is more to do than to hand over, bar, gap
-- ARGV id and, with the others, bar ms (0: no bar), gap ms (0: hand over; else leave the
--      key free for so long and only tell the next waiter), token that must match ("": any)
-- Returns the state that it found, which has no token unless one had to match.
local lock, queue, waiters, id, more = KEYS[1], KEYS[3], KEYS[4], ARGV[1], ARGV[2]
local must = more and ARGV[4] or ''

local found, token, channel, popped = 'gone', '0', '-', nil
local value = redis.pcall('GET', lock)
if type(value) ~= 'string' then value = '' end
if string.sub(value, 1, 32) == id then
  if must ~= '' then token = string.match(value, '^%x+ (%d+) ') or '0' end
  if must == '' or must == token then
    found = 'held'
    -- The usual case: give it to the next, who is alive and listens, or to nobody.
    if not more then
      popped = redis.call('LPOP', queue)
      if not popped then
        redis.call('DEL', lock)
        return 'held ' .. id .. ' 0'
      end
      local record = redis.call('HGET', waiters, popped)
      local t = redis.call('TIME')
      local granted = t[1] .. string.sub('00000' .. t[2], -6)
      local now = tonumber(granted)
      local deadline, fences, who, listener
      if record then deadline, fences, who, listener = string.match(record, '^(%d+) %S+ (%d+) ((%S+) .*)$') end
      if deadline and tonumber(deadline) > now and listener ~= '-' then
        local last = redis.call('SET', KEYS[2], fences == '1' and granted or string.format('%.0f', now + fences - 1), 'PX', '86400000', 'GET')
        if last and tonumber(last) >= now then -- see next_token
          granted = string.format('%.0f', last + 1)
          redis.call('SET', KEYS[2], string.format('%.0f', last + fences), 'PX', '86400000')
        end
        local heard = redis.pcall(string.byte(listener) == 123 and 'SPUBLISH' or 'PUBLISH', listener, 'held\1' .. lock .. '\1' .. popped .. '\1' .. granted)
        if type(heard) == 'number' and heard > 0 then
          redis.call('HDEL', waiters, popped)
          redis.call('SET', lock, popped .. ' ' .. granted .. ' ' .. t[1] .. '.' .. t[2] .. ' ' .. who, 'PX', math.ceil((deadline - now) / 1000))
          return 'held ' .. id .. ' 0'
        end
      end
    end
    redis.call('DEL', lock)
    channel = string.match(value, '^%x+ %d+ %S+ (%S+)')
  end
end

--@common
local bar_ms, gap_ms = tonumber(more or 0), tonumber(more and ARGV[3] or 0)

if found == 'gone' and (must == '' or must == '0') and owner(value) ~= id then
  local record = redis.call('HGET', waiters, id)
  if redis.call('LREM', queue, 1, id) == 1 then
    redis.call('HDEL', waiters, id)
    local deadline
    if record then deadline, channel = string.match(record, '^(%d+) %S+ %d+ (%S+)') end
    if deadline and tonumber(deadline) > clock() then found = 'queued' end
  end
end
if bar_ms > 0 then redis.call('SET', KEYS[5], '1', 'PX', bar_ms) end
if found ~= 'gone' and must ~= '' then push(channel, 'gone', lock, id, token) end
if found == 'held' then
  if gap_ms > 0 then
    redis.call('SET', KEYS[6], '1', 'PX', gap_ms)
    local first = redis.call('LINDEX', queue, 0)
    local record = first and redis.call('HGET', waiters, first)
    local listener = record and string.match(record, '^%d+ %S+ %d+ (%S+)')
    if listener then push(listener, 'free', lock, first, '0') end
  else
    settle(lock, queue, waiters, KEYS[2], popped)
  end
end
return found .. ' ' .. id .. ' ' .. token
