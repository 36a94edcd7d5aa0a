-- Submits a claim in the cases that are not common; replaces the line --@submit of the scripts that
-- submit claims, which have set id, who, tokens, mode and the names of the keys.
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
  return n - drop_dead(queue, waiters, ids, records, now)
end

-- enqueue stores a waiter, at the end of the queue unless it already has a place. HSET comes first: at maxmemory the
-- server refuses it, and after another write it would not. If a later command is refused, the waiter is removed. Returns
-- how many waiters are before it, or the error; or, if the queue is full, the number of waiters and true.
local function enqueue(now, since)
  local old = parse(redis.call('HGET', waiters, id))
  local arrival, rank = now, nil
  if old then
    since, arrival = old.since, arrival_of(old.since)
  else
    rank = make_room(now)
    if rank >= MAX_WAITERS then return rank, true end
    local last = tonumber(redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2])
    arrival = digits(math.max(now, last and last + 1 or 0))
  end
  redis.call('HSET', waiters, id, digits(now + ARGV[3] * 1000) .. ' ' .. since .. ' ' .. tokens .. mode .. ' ' .. (old and old.skipped or '0') .. ' ' .. who)
  local failed = redis.pcall('PEXPIRE', waiters, KEEP_MS)
  if type(failed) ~= 'table' then failed = redis.pcall('ZADD', queue, 'NX', arrival, id) end
  if type(failed) ~= 'table' then failed = redis.pcall('PEXPIRE', queue, KEEP_MS) end
  if type(failed) == 'table' then
    redis.pcall('ZREM', queue, id)
    redis.pcall('HDEL', waiters, id)
    return failed
  end
  return rank or redis.call('ZRANK', queue, id) or 0
end

if redis.call('EXISTS', tombstone) == 1 then return 'gone ' .. id .. ' 0' end
local now, since, t = clock()
local held, failure = current(lock, holders, now)
if failure then return failure end
local token, more = extend(lock, holders, held, id, now, ARGV[2]), false
if not token and type(held) ~= 'string' and not in_gap(gap) then
  more = grant_next(lock, queue, waiters, counter, holders, held)
  held, failure = current(lock, holders, now)
  if failure then return failure end
  token = extend(lock, holders, held, id, now, ARGV[2])
  if not token and not more and fits(held, mode) and redis.call('EXISTS', queue) == 0 then -- all waiters were dead
    token = next_token(counter, tokens, t)
    redis.call('HDEL', waiters, id) -- its record, if the queue was lost: a holder does not wait
    if mode == '' then
      hold(lock, id, '.', token, tokens, who, ARGV[2])
    else
      join(lock, holders, held, {id = id, mode = mode, tokens = tokens, who = who, deadline = now + ARGV[2] * 1000}, token, now)
    end
  end
end
if token then return 'held ' .. id .. ' ' .. token end
more = more or is_stale(held)

if ARGV[3] == '0' then return (more and 'again ' or 'gone ') .. id .. ' 0' end
mark(lock, held) -- first: if the user may not set it, nothing is stored
local left = lease_left(lock, gap, held, now)
local rank, full = enqueue(now, since)
if full then return 'full ' .. id .. ' ' .. rank end
if type(rank) == 'table' then return rank end
return queued(gap, id, rank, more, held, left)
