-- Sets a key.
-- KEYS key
-- ARGV value, lifetime in ms (0: unlimited)
if ARGV[2] == '0' then
  return redis.call('SET', KEYS[1], ARGV[1])
end
return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
