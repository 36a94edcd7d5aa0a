-- Renews claims on one lock, in any phase, drops dead waiters and grants the lock. Works at
-- maxmemory: its first write is always allowed. Without claims it only drops dead waiters
-- and grants the lock.
-- KEYS lock, counter, queue, waiters, holders and, with plain clients, gap
-- ARGV echo, channel of the process ("-": it is not subscribed), then id, ttl ms and
--      heartbeat ms of each claim
-- Returns {echo, state...}; without claims {echo}, or {echo, "more"} if dead waiters
-- remain to be dropped.
--@common
local lock, counter, queue, waiters, holders, gap, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], ARGV[2]

-- ranks_of returns how many waiters are before each of those whose arrivals are given. For those at the head of
-- the queue it is exact, since it decides when they ask again. Of many others it is an estimate, from the
-- places of the first and the last of them, and from when each of them came.
local function ranks_of(queue, waits, head)
  local ranks, rest = {}, {}
  for i, id in ipairs(head) do ranks[id] = i - 1 end
  for id in pairs(waits) do
    if not ranks[id] then rest[#rest + 1] = id end
  end
  if #rest <= EXACT then
    for _, id in ipairs(rest) do ranks[id] = redis.call('ZRANK', queue, id) or 0 end
    return ranks
  end
  local first, last = rest[1], rest[1]
  for _, id in ipairs(rest) do
    if waits[id] < waits[first] then first = id elseif waits[id] > waits[last] then last = id end -- of the same length
  end
  local from, rank = waits[first], redis.call('ZRANK', queue, first) or 0
  local slope = ((redis.call('ZRANK', queue, last) or 0) - rank) / math.max(waits[last] - from, 1)
  for _, id in ipairs(rest) do ranks[id] = math.max(math.floor(rank + (waits[id] - from) * slope), RECHECKS) end
  return ranks
end

redis.call('PEXPIRE', waiters, KEEP_MS)
local now = clock()
local ids, records, arrivals, dead = {}, {}, {}, {}
local waits = {} -- id -> arrival
for i = 3, #ARGV, 3 do ids[#ids + 1] = ARGV[i] end
if #ids > 0 then
  local deadlines = {} -- by heartbeat: printing is expensive
  local same = '^%d+ (%d+)%.(%d+) %d+%a?%d* [02] ' .. string.gsub(channel, '%p', '%%%0') .. ' ' -- only the deadline changes
  for i, record in ipairs(redis.call('HMGET', waiters, unpack(ids))) do
    local id, heartbeat = ids[i], ARGV[3 * i + 2]
    local found, _, seconds, micros
    local deadline = record and string.match(record, '^%d+')
    if deadline then found, _, seconds, micros = string.find(record, same) end
    local rest = found and string.sub(record, #deadline + 1)
    if deadline and not rest then
      local claim, skipped, info
      seconds, micros, claim, skipped, info = string.match(record, '^%d+ (%d+)%.(%d+) (%d+%a?%d*) (%d) %S+ (.*)$')
      if seconds then rest = ' ' .. seconds .. '.' .. micros .. ' ' .. claim .. (skipped == '0' and ' 0 ' or ' 2 ') .. channel .. ' ' .. info end
    end
    if rest and tonumber(deadline) > now then
      deadlines[heartbeat] = deadlines[heartbeat] or digits(now + heartbeat * 1000)
      records[#records + 1] = id
      records[#records + 1] = deadlines[heartbeat] .. rest
      waits[id] = seconds .. string.sub('00000' .. micros, -6)
      arrivals[#arrivals + 1] = waits[id]
      arrivals[#arrivals + 1] = id
    else
      dead[#dead + 1] = id -- past its deadline, or in the queue without a record
    end
  end
  drop(queue, waiters, dead)
end
local any = #records > 0
if any then
  redis.call('HSET', waiters, unpack(records))
  redis.call('ZADD', queue, 'NX', unpack(arrivals)) -- it may have been deleted or evicted without its records
end
redis.call('PEXPIRE', queue, KEEP_MS)

local more, head = false, nil
local held, failure = current(lock, holders, now)
if failure then return failure end
if type(held) ~= 'string' and not in_gap(gap) then
  more = grant_next(lock, queue, waiters, counter, holders, held)
  held, failure = current(lock, holders, now)
  if failure then return failure end
else
  head = redis.call('ZRANGE', queue, 0, TRIM - 1)
  if #head > 0 and drop_dead(queue, waiters, head, redis.call('HMGET', waiters, unpack(head)), now) > 0 then head = nil end
  if any then mark(lock, held) end
end
more = more or is_stale(held)
local unsubscribed = any and channel ~= '-' and not subscribed(channel) and ' unsubscribed' or ''
local ranks = any and ranks_of(queue, waits, head or redis.call('ZRANGE', queue, 0, TRIM - 1)) or {}
local answers, left = {ARGV[1]}, nil
for i, id in ipairs(ids) do
  local token = extend(lock, holders, held, id, now, ARGV[3 * i + 1])
  if token then
    answers[#answers + 1], left = 'held ' .. id .. ' ' .. token, nil -- its lease is longer now
  elseif waits[id] then
    local rank = ranks[id] or 0
    if rank < RECHECKS then left = left or lease_left(lock, gap, held, now) end
    answers[#answers + 1] = queued(gap, id, rank, more, held, left) .. unsubscribed
  else
    answers[#answers + 1] = 'gone ' .. id .. ' 0'
  end
end
if more and #ids == 0 then answers[2] = 'more' end
return answers
