-- refused: counts how often the upstream refused the calls of one task.
--
-- KEYS[1]  counter of the task
-- KEYS[2]  where the call is marked as made
-- ARGV[1]  ttl_us: how long after its last refusal a task is forgotten
-- Reply    how often
-- Worst case: four commands.
-- A blind retry changes nothing and gets the same reply, for MARKED_MS.
-- Needs Redis 6.2.

-- Longer than a client repeats a call.
local MARKED_MS = '60000'

local told = redis.call('GET', KEYS[2])
if told then
  return tonumber(told)
end
local times = redis.call('INCR', KEYS[1])
redis.call('PEXPIRE', KEYS[1], int(ttl_ms(ARGV[1] + 0)))
redis.call('SET', KEYS[2], int(times), 'PX', MARKED_MS)
return times
