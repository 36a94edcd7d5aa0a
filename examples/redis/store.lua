-- Writes a value, unless a greater fencing token has been used before.
-- KEYS[1]  the data, a hash
-- ARGV     the token, the value
-- Returns  1 if the value was written, else 0
local last = tonumber(redis.call('HGET', KEYS[1], 'fence') or 0)
if tonumber(ARGV[1]) < last then
  return 0
end
redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'value', ARGV[2])
return 1
