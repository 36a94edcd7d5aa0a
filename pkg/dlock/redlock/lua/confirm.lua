-- Gives a claim its token on this node. The claim must still be stored here by this round,
-- and its token must be greater than every token that won here before: this makes tokens
-- increase.
-- KEYS lock, fence, waiters, queue
-- ARGV id, round, token, channel
-- Returns {answer, id, number}: "held" with the token; "lost"; "higher" with the
-- token that this one must exceed.
--@common
local lock, fence, id, token = KEYS[1], KEYS[2], ARGV[1], ARGV[3]

local value = redis.call('GET', lock)
if owner(value) ~= id then return {'lost', id, '0'} end
local was, since, round, info = string.match(value, '^%x+ (%d+) (%S+) (%d+) (.*)$')
if round ~= ARGV[2] then return {'lost', id, '0'} end
if was == token then return {'held', id, token} end
local last = redis.call('GET', fence) or '0'
if tonumber(last) >= tonumber(token) then return {'higher', id, last} end
redis.call('SET', fence, token, 'PX', FENCE_MS)
redis.call('SET', lock, record(id, token, since, round, info), 'KEEPTTL')
unshow(KEYS[3], KEYS[4], id)
redis.pcall('PUBLISH', ARGV[4], 'taken\1' .. token)
return {'held', id, token}
