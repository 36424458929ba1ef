-- recent: who started within the last period of a sliding_log, latest first. Slots
-- ahead are no starts yet. Writes nothing.
--
-- KEYS[1]  state key of the limit
-- ARGV[1]  period_us
-- ARGV[2]  most starts to tell
-- Reply    for each start: at_us, cost, who
-- Worst case: two reads of the key, the second of as many starts as were asked for.
-- A blind retry is safe.
-- Needs Redis 6.2.

if sliding_log.load(false, { count = 0, period_us = 0 }, 0, KEYS[1]).is_foreign then
  return redis.error_reply('RAMPMETER key ' .. KEYS[1]
    .. ' holds something else than the state of its limit; remove it, or rename the limit')
end

local now, starts = now_us(), {}
local ends, begins = string.format('(s' .. AT, now + 1), string.format('[s' .. AT, now - ARGV[1] + 1)
for i, member in ipairs(redis.call('ZREVRANGEBYLEX', KEYS[1], ends, begins, 'LIMIT', 0, ARGV[2])) do
  local at, cost, who = string.match(member, '^s(%d+)/%d+/(%d+)%.(.*)$')
  starts[3 * i - 2], starts[3 * i - 1], starts[3 * i] = tonumber(at), tonumber(cost), who
end
return starts
