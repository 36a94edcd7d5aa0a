local function write(KEYS, ARGV) --@body
end

-- Runs write if the token is not smaller than the greatest that the fence has seen.
-- KEYS fence, and those of write
-- ARGV token, and those of write
-- Returns what write returns, or an error that begins with DLOCK_FENCE_. No script
-- of a user has such errors of its own.
--
-- Tokens are compared as decimal text, by length and then by digits: a number of Lua is exact only
-- up to 2^53. The fence is raised before write runs: if write fails, the fence is still right.
local token, seen = ARGV[1], redis.call('GET', KEYS[1])
if seen and not string.match(seen, '^[1-9]%d*$') then
  return redis.error_reply('DLOCK_FENCE_DAMAGED the fence key holds no token')
end
if seen and (#seen > #token or (#seen == #token and seen > token)) then
  return redis.error_reply('DLOCK_FENCE_STALE ' .. seen)
end
if seen ~= token then redis.call('SET', KEYS[1], token) end
local keys, args = {}, {}
for i = 2, #KEYS do keys[i - 1] = KEYS[i] end
for i = 2, #ARGV do args[i - 1] = ARGV[i] end
return write(keys, args)
