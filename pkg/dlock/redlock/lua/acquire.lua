-- Stores a claim on this node if the lock is free here. A claim that is already stored
-- takes the new round, and its lease starts again; a call of an older round changes
-- nothing.
-- KEYS lock, fence, tombstone, waiters, queue, turn
-- ARGV id, round, ttl ms, token, heartbeat ms (0: does not wait), info, proposal (0: none), channel,
--      when it began to wait (us, 0: unknown), "1" if a node may show that it waits
-- A token of 0 asks for the proposal to be accepted, or for a candidate. Any other token means
-- that the claim has won with it on a majority of the nodes, and this node stores it as well.
-- Returns {answer, id, number, other, pttl, turn}: "held" with the proposal and the time, if the proposal is
-- greater than every token that won here before, and not far behind the time; "ours" with the candidate and the time, or with the
-- token; "taken" with the owner's first 32 characters and the time left, or with the claim that was told to
-- try, the time that it has for that, and "turn", or "next" if this claim is the first of those that were not; "tombstoned"; "stale".
--@common
local lock, fence, id, round, token = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[4]

local known = redis.call('MGET', KEYS[3], fence, KEYS[6])
if known[1] then return {'tombstoned', id, '0'} end
local value = redis.call('GET', lock) -- fails, before anything is written, if it is not a string
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local waits = ARGV[5] ~= '0'
if value and owner(value) ~= id then
  if waits then show(KEYS[4], KEYS[5], id, ARGV[5], t, ARGV[6], ARGV[8], ARGV[9]) end
  return {'taken', id, '0', owner(value), redis.call('PTTL', lock), ''}
end
local turn = waits and not value and known[3]
if turn and turn ~= id then
  show(KEYS[4], KEYS[5], id, ARGV[5], t, ARGV[6], ARGV[8], ARGV[9])
  local first = redis.pcall('ZRANGE', KEYS[5], 0, 0)
  return {'taken', id, '0', turn, redis.call('PTTL', KEYS[6]), first[1] == id and 'next' or 'turn'}
end
local since = t[1] .. '.' .. t[2]
if value then
  local was, at, stored = string.match(value, '^%x+ (%d+) (%S+) (%d+) ')
  if stored and tonumber(stored) > tonumber(round) then return {'stale', id, '0'} end
  if stored == round and was ~= '0' and token == '0' then -- the call arrives again
    if was == ARGV[7] then return {'held', id, was, digits(now)} end
    return {'stale', id, '0'}
  end
  since = at or since
  if token ~= '0' then -- it may have a longer lease by now
    redis.call('SET', lock, record(id, token, since, round, ARGV[6]), 'KEEPTTL')
    if redis.call('PTTL', lock) < tonumber(ARGV[3]) then redis.call('PEXPIRE', lock, ARGV[3]) end
    raise(fence, token)
    unshow(KEYS[4], KEYS[5], id)
    return {'ours', id, token}
  end
end
if token ~= '0' then
  redis.call('SET', lock, record(id, token, since, round, ARGV[6]), 'PX', ARGV[3])
  raise(fence, token)
  unshow(KEYS[4], KEYS[5], id)
  return {'ours', id, token}
end
local last = tonumber(known[2] or '0')
if tonumber(ARGV[7]) > last and tonumber(ARGV[7]) + SLACK_US >= now then token = ARGV[7] end
redis.call('SET', lock, record(id, token, since, round, ARGV[6]), 'PX', ARGV[3])
if token ~= '0' then
  redis.call('SET', fence, token, 'PX', FENCE_MS)
  if ARGV[10] == '1' then unshow(KEYS[4], KEYS[5], id) end
  return {'held', id, token, digits(now)}
end
return {'ours', id, digits(math.max(last + 1, now)), digits(now)}
