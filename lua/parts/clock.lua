-- The one clock: Redis's own, in whole microseconds since the Unix epoch. A
-- double holds them exactly until the year 2255.
local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Redis wants integers as text; Lua would write large ones as 1.79e+15.
local function int(n)
  return string.format('%d', n)
end

-- A key must outlive the state it holds, so its TTL is rounded up.
local function ttl_ms(us)
  return math.ceil(us / 1000)
end
