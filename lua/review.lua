-- review: has rows of a waiting line looked at now that are held until later, because
-- the limits that hold them have other numbers since. They keep their order.
--
-- KEYS[1]  line key (see parts/line.lua); what is touched is its /held, which is its own
-- Reply 1 if there are more of them, 0 if not
-- Worst case: MOST_ROWS rows, by three commands.
-- A blind retry is safe.
-- Needs Redis 5.

-- Bounds one call's work.
local MOST_ROWS = 1000

local now = now_us()
local held = KEYS[1] .. '/held'
local rows = redis.call('ZRANGEBYSCORE', held, '(' .. int(now), '+inf', 'LIMIT', 0, MOST_ROWS)
if #rows == 0 then
  return 0
end
local places = {}
for i, row in ipairs(rows) do
  places[2 * i - 1], places[2 * i] = int(now - #rows + i), row
end
redis.call('ZADD', held, 'XX', unpack(places))
redis.pcall('PUBLISH', KEYS[1] .. '/signal', '')
return #rows == MOST_ROWS and 1 or 0
