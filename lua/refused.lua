-- refused: counts how often the upstream refused the calls of one task.
--
-- KEYS[1]  counter of the task
-- ARGV[1]  ttl_us: how long after its last refusal a task is forgotten
-- Reply    how often
-- Worst case: two commands.
-- A blind retry counts again: the task is put off as if it had been refused once more.
-- Needs Redis 6.2.

local times = redis.call('INCR', KEYS[1])
redis.call('PEXPIRE', KEYS[1], int(ttl_ms(ARGV[1] + 0)))
return times
