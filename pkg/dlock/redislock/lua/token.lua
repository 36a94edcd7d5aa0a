  -- The next token, max(last + 1, time), of as many as fences says. The time keeps tokens increasing
  -- if the counter was lost or, after a failover, is old; the counter does if the clock was set back.
  local token = t[1] .. string.sub('00000' .. t[2], -6)
  local last = redis.call('SET', fence, fences == '1' and token or string.format('%.0f', token + fences - 1), 'PX', '86400000', 'GET')
  if last and tonumber(last) >= tonumber(token) then
    token = string.format('%.0f', last + 1)
    redis.call('SET', fence, string.format('%.0f', last + fences), 'PX', '86400000')
  end
