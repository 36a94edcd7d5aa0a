-- Renews claims that are stored on this node, and stores none. Works at maxmemory: it
-- begins with PEXPIRE. It never shortens a lease unless shorten is 1, so that a late call
-- does no harm.
-- KEYS lock, fence of each claim
-- ARGV echo, then id, ttl ms, token, shorten (0|1), round that has won of each
-- Returns {echo, answer...}: the token if the claim is stored, "" if the key does not
-- exist, "-" if it holds something else.
--@common
local answers = {ARGV[1]}
for i = 1, #KEYS / 2 do
  local lock, fence = KEYS[2 * i - 1], KEYS[2 * i]
  local id, ttl, token = ARGV[5 * i - 3], ARGV[5 * i - 2], ARGV[5 * i - 1]
  local value = redis.pcall('GET', lock)
  if value == false then
    answers[i + 1] = ''
  elseif type(value) ~= 'string' or owner(value) ~= id then
    answers[i + 1] = '-'
  else
    local lease = tonumber(ttl)
    if ARGV[5 * i] ~= '1' then lease = math.max(lease, redis.call('PTTL', lock)) end
    redis.call('PEXPIRE', lock, lease)
    local was, since, round, info = string.match(value, '^%x+ (%d+) (%S+) (%d+) (.*)$')
    if was and (was ~= token or tonumber(round) < tonumber(ARGV[5 * i + 1])) then
      -- this node has missed that it won, or in which round; the removal of a lost round may be on its way
      raise(fence, token)
      redis.call('SET', lock, record(id, token, since, ARGV[5 * i + 1], info), 'KEEPTTL')
      was = token
    elseif was then
      keep(fence, token)
    end
    answers[i + 1] = was or '0'
  end
end
return answers
