-- Removes a claim in any phase. If it held the lock, grants the lock to the next waiter. Works at
-- maxmemory: its first write is always allowed.
-- KEYS lock, counter, queue, waiters, holders and, if any of the optional arguments is needed,
--      tombstone, gap
-- ARGV "<id>." and, optionally, tombstone ms (0: none), gap ms (0: grant; otherwise leave the
--      key free for that time and only notify the next waiter), token that must match
--      ("": any)
-- Returns the value of the lock that it has deleted or granted, or the state that it found,
-- with a token only if one had to match. "more" follows if dead waiters or holders must be dropped
-- before the lock can be granted.
local call = redis.call -- looked up once
local lock, counter, claim, extra = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local value = redis.pcall('GET', lock)
local joint = type(value) == 'table' -- readers or permits hold it, or it is some other key
if type(value) ~= 'string' then value = '' end

-- The common case: the claim holds the lock, and the mark says that no claim waits.
if not extra and string.sub(value, 1, 33) == claim then
  call('DEL', lock)
  return value
end
local id = string.sub(claim, 1, 32)

-- The common case of a busy lock: the next waiter is alive and subscribed, or there is no waiter.
-- The grant is stored before it is published: a subscriber at a replica receives messages that this
-- server cannot count.
if not extra and string.sub(value, 1, 33) == id .. '+' then
  local first = call('ZRANGE', KEYS[3], '0', '1')
  local next = first[1]
  if not next then
    call('DEL', lock)
    return value
  end
  local record = call('HGET', KEYS[4], next)
  local t = call('TIME')
  local now = t[1] * 1000000 + t[2]
  local deadline, tokens, who, channel
  if record then deadline, tokens, who, channel = string.match(record, '^(%d+) %S+ (%d+) %d ((%S+) .*)$') end
  local left = deadline and deadline - now or 0
  if left > 0 and left <= 3000000 and channel ~= '-' then
    local sharded = string.byte(channel) == 123
    if redis.pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel)[2] ~= 0 then
      call('ZREM', KEYS[3], next)
      --@token
      call('HDEL', KEYS[4], next) -- not sooner: without a token, the waiter gets its place back when it renews
      call('SET', lock, next .. (first[2] and '+ ' or '. ') .. token .. ' ' .. tokens .. ' ' .. who, 'PX', math.ceil(left / 1000))
      redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, 'held\1' .. lock .. '\1' .. next .. '\1' .. token)
      return value
    end
  end
end

-- The common case of a reader or a permit: no claim waits.
if joint and not extra and call('EXISTS', KEYS[3]) == 0 then
  local deadline, t = redis.pcall('ZSCORE', lock, id), call('TIME')
  if type(deadline) == 'string' and deadline - t[1] * 1000000 > t[2] + 0 then
    call('ZREM', lock, id)
    call('HDEL', KEYS[5], id)
    local last = call('ZRANGE', lock, '-2', '-2', 'WITHSCORES')[2] -- see shrink()
    if not last or last - t[1] * 1000000 <= t[2] + 0 then
      call('DEL', lock, KEYS[5])
    elseif last - deadline < 0 then
      local ms = math.ceil((last - t[1] * 1000000 - t[2]) / 1000)
      call('PEXPIRE', lock, ms)
      call('PEXPIRE', KEYS[5], ms)
    end
    return 'held ' .. id .. ' 0'
  end
end

--@common
local queue, waiters, holders = KEYS[3], KEYS[4], KEYS[5]
local tombstone_ms, gap_ms, required = tonumber(extra or 0), tonumber(extra and ARGV[3] or 0), extra and ARGV[4] or ''
local found, token, channel, more = 'gone', '0', '-', false
local now = clock()
local held, failure = current(lock, holders, now)
if failure and not is_wrong_type(failure) then return failure end -- other data is left alone

-- matches reports whether a holder of that token is to be removed.
local function matches(actual)
  if required ~= '' then token = actual or '0' end
  return required == '' or required == token
end

local holds, joined = true, type(held) == 'table' and redis.call('ZSCORE', lock, id) -- its deadline
if owner(held) == id then
  if matches(token_of(held)) then
    found, channel = 'held', string.match(held, '^%x+[.+] %d+ %d+ (%S+)') or '-'
    redis.call('DEL', lock)
    held = nil
  end
elseif joined then
  local actual, its = string.match(redis.call('HGET', holders, id) or '', '^(%d+) %d+ (%S+)')
  if matches(actual) then
    found, channel = 'held', its or '-'
    redis.call('ZREM', lock, id)
    redis.call('HDEL', holders, id)
    held = count(lock, holders, held.mode, held.stale)
    if held then shrink(lock, holders, joined, now) end
  end
else
  holds = false
end
if not holds and (required == '' or required == '0') then
  local w = parse(redis.call('HGET', waiters, id))
  drop(queue, waiters, {id})
  if w and w.deadline > now then
    found, channel = 'queued', w.channel
  end
end
if tombstone_ms > 0 then redis.call('SET', KEYS[6], '1', 'PX', tombstone_ms) end
if found ~= 'gone' and required ~= '' then push(channel, 'gone', lock, id, token) end
if found == 'held' and not held and gap_ms > 0 then
  redis.call('SET', KEYS[7], '1', 'PX', gap_ms)
  local first = redis.call('ZRANGE', queue, 0, 0)[1]
  local w = first and parse(redis.call('HGET', waiters, first))
  if w then push(w.channel, 'free', lock, first, '0') end
elseif found == 'held' or type(held) == 'table' then -- those behind a waiter that left may fit
  more = grant_next(lock, queue, waiters, counter, holders, held) or is_stale(held)
end
return found .. ' ' .. id .. ' ' .. token .. (more and ' more' or '')
