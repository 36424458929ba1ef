-- refused: counts how often the upstream refused the calls of one task.
--
-- KEYS[1]  counter of the task
-- ARGV[1]  ttl_us: how long after its last refusal a task is forgotten
-- Reply    how often
-- A blind retry counts again.
-- Needs Redis 6.2.

local times = redis.call('INCR', KEYS[1])
redis.call('PEXPIRE', KEYS[1], int(ttl_ms(ARGV[1] + 0)))
return times
