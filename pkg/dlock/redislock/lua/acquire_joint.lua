-- Submits the claim of a reader, or for a permit. A claim that is already stored keeps its place, and
-- its deadline restarts.
-- KEYS lock, counter, queue, waiters, holders, tombstone and, with plain clients, gap
-- ARGV id, ttl ms, heartbeat ms (0: does not wait), "<channel> <info>", number of tokens, mode
-- Returns what acquire.lua returns.
local call = redis.call -- looked up once
local lock, counter, queue, waiters, holders, tombstone, gap = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local id, who, tokens, mode = ARGV[1], ARGV[4], ARGV[5], ARGV[6]

-- The common case: no claim waits, there is room, and no holder is past its deadline.
local known
if gap then known = call('EXISTS', queue, waiters, tombstone, gap) else known = call('EXISTS', queue, waiters, tombstone) end
if known == 0 then
  local t = call('TIME')
  local first = redis.pcall('ZRANGE', lock, '0', '0', 'WITHSCORES') -- an error if another claim holds it
  local room = not first.err
  if room and first[1] then
    room = first[2] - t[1] * 1000000 > t[2] + 0 and call('ZSCORE', lock, mode) == 'inf' and not call('ZSCORE', lock, id)
    if room and mode ~= 's' then room = call('ZCARD', lock) <= tonumber(string.sub(mode, 2)) end
  end
  if room then
    --@token
    -- See join().
    local ms, lasts, recorded = ARGV[2] + 0, first[1] and call('PTTL', lock) or -2, call('PTTL', holders)
    if lasts < ms or recorded < ms then call('PEXPIRE', lock, math.max(lasts, ms)) end
    call('HSET', holders, id, token .. ' ' .. tokens .. ' ' .. who)
    if recorded < ms then call('PEXPIRE', holders, ms) end
    local failed = redis.pcall('ZADD', lock, 'inf', mode, string.format('%.0f', t[1] * 1000000 + t[2] + ms * 1000), id)
    if type(failed) == 'table' then
      call('HDEL', holders, id)
      return failed
    end
    if lasts == -2 then call('PEXPIRE', lock, ms) end
    return 'held ' .. id .. ' ' .. token
  end
end

--@common
--@submit
