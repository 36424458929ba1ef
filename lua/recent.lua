-- recent: who started within the last period of a sliding_log, latest first. Slots
-- ahead are no starts yet. Writes nothing.
--
-- KEYS[1]  state key of the limit
-- ARGV[1]  period_us
-- ARGV[2]  most starts to tell
-- Reply    for each start: at_us, cost, who
-- A blind retry is safe.
-- Needs Redis 6.2.

if sliding_log.load(false, {}, 0, KEYS[1]).is_foreign then
  return redis.error_reply('RAMPMETER key ' .. KEYS[1]
    .. ' holds something else than the state of its limit; remove it, or rename the limit')
end

local now, period_us, most = now_us(), tonumber(ARGV[1]), tonumber(ARGV[2])
local starts = {}
local rank = redis.call('ZCOUNT', KEYS[1], '-inf', int(now)) - 1
while rank >= 0 and #starts < 3 * most do
  local first = redis.call('ZRANGE', KEYS[1], int(rank), int(rank), 'WITHSCORES')
  local at, point = tonumber(first[2]), string.find(first[1], '.', 1, true)
  if at <= now - period_us then
    break
  end
  local cost, tokens = size_of(KEYS[1], string.sub(first[1], 1, point - 1), rank)
  starts[#starts + 1], starts[#starts + 2] = at, cost
  starts[#starts + 1] = string.sub(first[1], point + 1)
  rank = rank - tokens
end
return starts
