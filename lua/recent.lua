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
return sliding_log.recent(KEYS[1], tonumber(ARGV[1]), now_us(), tonumber(ARGV[2]))
