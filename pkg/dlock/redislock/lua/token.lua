  -- Takes the next token, max(last + 1, time), and reserves that number of tokens. The time keeps
  -- tokens increasing if the counter was lost or, after a failover, is old; the counter keeps them
  -- increasing if the clock was set back.
  local token = t[1] .. string.sub('00000' .. t[2], -6)
  local last = redis.call('SET', counter, tokens == '1' and token or string.format('%.0f', token + tokens - 1), 'GET')
  last = tonumber(last) -- nil if there was none, or something that is not a number
  if last and last >= tonumber(token) then
    token = string.format('%.0f', last + 1)
    redis.call('SET', counter, string.format('%.0f', last + tokens))
  end
