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

redis.call('PEXPIRE', waiters, KEEP_MS)
local now = clock()
local waits, any = {}, false
for i = 3, #ARGV, 3 do
  local id = ARGV[i]
  local w = parse(redis.call('HGET', waiters, id))
  if w and w.deadline > now then
    waits[id], any = true, true
    w.deadline, w.channel = now + ARGV[i + 2] * 1000, channel
    if w.skipped == '1' then w.skipped = '2' end
    store(waiters, id, w)
    -- The queue may have been deleted or evicted without its records.
    redis.call('ZADD', queue, 'NX', arrival_of(w.since), id)
  else
    drop(queue, waiters, {id}) -- past its deadline, or in the queue without a record
  end
end
redis.call('PEXPIRE', queue, KEEP_MS)

local more = false
local held, failure = current(lock, holders, now)
if failure then return failure end
if type(held) ~= 'string' and not in_gap(gap) then
  more = grant_next(lock, queue, waiters, counter, holders, held)
  held = current(lock, holders, now)
else
  prune_range(queue, waiters, 0, TRIM - 1, now)
  if any then mark(lock, held) end
end
more = more or is_stale(held)
local unsubscribed = any and channel ~= '-' and not subscribed(channel) and ' unsubscribed' or ''
local answers = {ARGV[1]}
for i = 3, #ARGV, 3 do
  local id = ARGV[i]
  local token = extend(lock, holders, held, id, now, ARGV[i + 1])
  if token then
    answers[#answers + 1] = 'held ' .. id .. ' ' .. token
  elseif waits[id] then
    answers[#answers + 1] = queued(lock, queue, gap, id, more, held, now) .. unsubscribed
  else
    answers[#answers + 1] = 'gone ' .. id .. ' 0'
  end
end
if more and #ARGV == 2 then answers[2] = 'more' end
return answers
