-- freeze: closes a policy until some time from now. Only ever later: a shorter
-- freeze does not shorten one in force.
--
-- KEYS[1]  freeze key
-- KEYS[2]  where the call is marked as made
-- ARGV[1]  duration_us
-- Reply    until_us, the end of the freeze in force
-- Worst case: four commands.
-- A blind retry changes nothing and gets the same reply, for MARKED_MS.
-- Needs Redis 6.2.

-- Longer than a client repeats a call.
local MARKED_MS = '60000'

local told = redis.call('GET', KEYS[2])
if told then
  return tonumber(told)
end
local now = now_us()
local frozen_until = math.max(now + tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[1]) or 0))
redis.call('SET', KEYS[1], int(frozen_until), 'PX', int(math.max(1, ttl_ms(frozen_until - now))))
redis.call('SET', KEYS[2], int(frozen_until), 'PX', MARKED_MS)
return frozen_until
