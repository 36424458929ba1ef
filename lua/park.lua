-- park: gives a denied task an instant of its own to ask again at, behind those
-- that were given theirs before. It takes nothing from any limit: whether the
-- task may start is decided when it asks again.
--
-- KEYS[1]  park key of the limit that holds the task back: the instant, in us,
--          that the next task gets
-- ARGV[1]  at_us: the first instant at which the task would pass
-- ARGV[2]  step_us: how long the limit takes to make up for the task's cost
-- Reply    now_us, the task's instant in us
-- A blind retry is safe but leaves a gap of one step.
-- Needs Redis 6.2.

local now = now_us()
local at = math.max(tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[1]) or 0))
local next_at = at + tonumber(ARGV[2])
redis.call('SET', KEYS[1], int(next_at), 'PX', int(math.max(1, ttl_ms(next_at - now))))
return { now, at }
