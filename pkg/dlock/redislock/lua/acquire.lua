-- Submits a claim. A claim that is already stored keeps its place, and its deadline restarts.
-- KEYS lock, counter, queue, waiters, tombstone and, with plain clients, gap
-- ARGV id, ttl ms, heartbeat ms (0: does not wait), "<channel> <info>" and, if it is not 1,
--      the number of tokens
-- Returns a state, or "again <id> 0" if dead waiters must be dropped before it is known
-- whether the lock is free, or "full <id> <waiters>".
local call = redis.call -- looked up once
local lock, counter, queue, waiters, tombstone, gap = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local id, who, tokens = ARGV[1], ARGV[4], ARGV[5] or '1'

-- The common case: the lock has no holder, no waiter and no tombstone.
local known
if gap then known = call('EXISTS', lock, queue, tombstone, gap) else known = call('EXISTS', lock, queue, tombstone) end
if known == 0 then
  local t = call('TIME')
  --@token
  call('SET', lock, id .. '. ' .. token .. ' ' .. tokens .. ' ' .. who, 'PX', ARGV[2])
  return 'held ' .. id .. ' ' .. token
end

-- The common case of a busy lock: another claim holds it, so this one waits or fails. The first that
-- waits marks the value, unless it is that of a plain client. Apart from the lock and the queue, only
-- a tombstone or a gap can exist.
local waits = ARGV[3] ~= '0'
local value = call('GET', lock) -- fails, before anything is written, if it is not a string
local ahead = call('ZCARD', queue)
if value then known = known - 1 end
if ahead > 0 then known = known - 1 end
if value and known == 0 and ahead < 1024 and not gap and string.sub(value, 1, 32) ~= id then
  if not waits then return 'gone ' .. id .. ' 0' end
  local t = call('TIME')
  local micros, seconds = string.sub('00000' .. t[2], -6), ARGV[3] / 1000
  local arrival = t[1] .. micros
  local deadline = seconds % 1 == 0 and (t[1] + seconds) .. micros or string.format('%.0f', arrival + ARGV[3] * 1000)
  -- The mark comes first: if the user may not set it, nothing is stored.
  if string.sub(value, 33, 33) == '.' and string.find(value, '^%x+%. %d+ %d+ %S+ ') then call('SETRANGE', lock, '32', '+') end
  if call('HSETNX', waiters, id, deadline .. ' ' .. t[1] .. '.' .. t[2] .. ' ' .. tokens .. ' 0 ' .. who) == 1 then
    if ahead > 0 and call('ZCOUNT', queue, arrival, '+inf') > 0 then -- the clock was set back
      arrival = string.format('%.0f', call('ZRANGE', queue, '-1', '-1', 'WITHSCORES')[2] + 1)
    end
    call('ZADD', queue, 'NX', arrival, id)
    -- A busy queue is never empty, and its waiters get the lock before they renew. So new
    -- waiters extend the expiry of the queue, in every sixteenth second.
    local recheck = 0
    if ahead == 0 or t[1] % 16 == 0 then
      call('PEXPIRE', queue, '60000')
      call('PEXPIRE', waiters, '60000')
      local left = call('PTTL', lock) -- see queued(); other waiters get their recheck time when they renew
      if left >= 0 then recheck = left + 2 end
    end
    return 'queued ' .. id .. ' 0 ' .. (ahead + 1) .. ' ' .. recheck
  end
end

--@common
local MAX_WAITERS = 100000
local SAMPLE_FROM, SAMPLE = 1024, 8 -- a new waiter in a longer queue examines SAMPLE waiters

-- make_room drops some dead waiters of a long queue, so that their share of it stays limited.
-- Returns the number of waiters.
local function make_room(now)
  local n = redis.call('ZCARD', queue)
  if n < SAMPLE_FROM then return n end
  local ids, records = {}, {}
  for i, text in ipairs(redis.call('HRANDFIELD', waiters, SAMPLE, 'WITHVALUES')) do
    if i % 2 == 1 then ids[#ids + 1] = text else records[#records + 1] = text end
  end
  local _, dropped = prune(queue, waiters, ids, records, now)
  return n - dropped
end

-- enqueue stores a waiter, at the end of the queue unless it already has a place. If the queue is
-- full, it returns the number of waiters.
local function enqueue(now, since)
  local old = parse(redis.call('HGET', waiters, id))
  local arrival = now
  if old then
    since, arrival = old.since, arrival_of(old.since)
  else
    local n = make_room(now)
    if n >= MAX_WAITERS then return n end
    local last = tonumber(redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2])
    arrival = digits(math.max(now, last and last + 1 or 0))
  end
  redis.call('ZADD', queue, 'NX', arrival, id)
  redis.call('HSET', waiters, id, digits(now + ARGV[3] * 1000) .. ' ' .. since .. ' ' .. tokens .. ' ' .. (old and old.skipped or '0') .. ' ' .. who)
end

if known > 0 and redis.call('EXISTS', tombstone) == 1 then return 'gone ' .. id .. ' 0' end
local free, more = not value and not in_gap(gap), false
if free then
  more = grant_next(lock, queue, waiters, counter)
  value = redis.call('GET', lock)
end
local now, since, t = clock()
if free and not value and not more then -- all waiters were dead
  local token = next_token(counter, tokens, t)
  hold(lock, id, '.', token, tokens, who, ARGV[2])
  return 'held ' .. id .. ' ' .. token
end
if value and owner(value) == id then
  redis.call('PEXPIRE', lock, ARGV[2])
  return 'held ' .. id .. ' ' .. token_of(value)
end

if not waits then return (more and 'again ' or 'gone ') .. id .. ' 0' end
mark(lock, value) -- first, as above
local full = enqueue(now, since)
if full then return 'full ' .. id .. ' ' .. full end
redis.call('PEXPIRE', queue, KEEP_MS)
redis.call('PEXPIRE', waiters, KEEP_MS)
return queued(lock, queue, gap, id, more)
