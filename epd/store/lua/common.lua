-- Libraries that the scripts of several files use.

--@lib clock
-- The clock of the server, which all processes share.

-- Unix time in whole milliseconds.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

--@lib batches
-- Commands with many arguments.

-- One call takes about 8000 arguments. Each call is also one command of the append-only file.
local BATCH = 1000

-- Calls "command" with the values from index "first" on, at most BATCH of them at a time.
local function in_batches(values, first, command)
  for at = first, #values, BATCH do
    command(unpack(values, at, math.min(at + BATCH - 1, #values)))
  end
end
