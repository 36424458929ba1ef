-- freeze: closes a policy until some time from now. Only ever later: a shorter
-- freeze does not shorten one in force.
--
-- KEYS[1]  freeze key
-- ARGV[1]  duration_us
-- Reply    until_us, the end of the freeze in force
-- Worst case: three commands.
-- A blind retry is safe: the freeze ends as much later as the call came later.
-- Needs Redis 6.2.

local now = now_us()
local frozen_until = math.max(now + tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[1]) or 0))
redis.call('SET', KEYS[1], int(frozen_until), 'PX', int(math.max(1, ttl_ms(frozen_until - now))))
return frozen_until
