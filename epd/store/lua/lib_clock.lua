-- Library: the server's clock, so that all who share it agree. Touches nothing.

-- Unix time in whole milliseconds.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
