-- Renews claims that are stored on this node, and stores none. Works at maxmemory: it
-- begins with PEXPIRE. It never shortens a lease unless shorten is 1, so that a late call
-- does no harm.
-- KEYS lock, fence of each claim
-- ARGV echo, then id, ttl ms, token, shorten (0|1), round that has won of each
-- Returns {echo, answer...}: the token if the claim is stored, "" if the key does not
-- exist, "-" if it holds something else, "!" and the error if the server refused a command.
--@common
-- renew returns the answer for one claim.
local function renew(lock, fence, id, ttl, token, shorten, won)
  local value, failure = read(lock)
  if failure then return '!' .. failure.err end
  if not value then return '' end
  if owner(value) ~= id then return '-' end
  local lease = tonumber(ttl)
  if shorten ~= '1' then lease = math.max(lease, redis.call('PTTL', lock)) end
  redis.call('PEXPIRE', lock, lease)
  local was, since, round, info = string.match(value, '^%x+ (%d+) (%S+) (%d+) (.*)$')
  if was and (was ~= token or tonumber(round) < tonumber(won)) then
    -- this node has missed that it won, or in which round; the removal of a lost round may be on its way
    raise(fence, token)
    redis.call('SET', lock, record(id, token, since, won, info), 'KEEPTTL')
    was = token
  elseif was then
    keep(fence, token)
  end
  return was or '0'
end

local answers = {ARGV[1]}
for i = 1, #KEYS / 2 do
  -- an error that concerns one claim does not end the renewal of the others
  local ok, answer = pcall(renew, KEYS[2 * i - 1], KEYS[2 * i], unpack(ARGV, 5 * i - 3, 5 * i + 1))
  if not ok then answer = '!' .. (type(answer) == 'table' and answer.err or answer) end
  answers[i + 1] = answer
end
return answers
