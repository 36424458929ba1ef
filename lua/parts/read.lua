-- What every operation on a policy begins with: the time, and one read of all the keys
-- that parts/policy.lua tells of. MGET answers nil for a key of another type, too;
-- who writes to a key that seemed to be missing looks twice before.
--
-- Who publishes does so by redis.pcall, in all operations: where an ACL refuses it, the
-- script must not end in the midst of its writes. A signal that nobody hears is only late.
local KEYS, ARGV = KEYS, ARGV
local now = now_us()
local raw = redis.call('MGET', unpack(KEYS))
local frozen_until = tonumber(raw[1] or 0)
