-- Most calls of reserve are simple: all their requests are equal, and nothing stands in
-- their way. Such a call is answered here, for only to make the tables and functions
-- that come behind this takes longer. The answer and the states are the same as theirs.
-- In any other case nothing is changed, and the call is up to them.
--
-- A fragment <algorithm>_shortcut tells what becomes of a simple state:
--   shortcuts.<algorithm>(raw, cost, times, numbers of the limit ...)
--        for so many requests of that cost, one after the other; raw as for load. Returns
--        nil if the state is not simple or not all of them pass now; or else the new
--        value, its TTL in us, the instant before which the starts must be (0 for none),
--        the second number of all receipts; and for the first and for the last request
--        the first number of its receipt, remaining and reset_after_us
-- Before this text stands by_shortcut(i, raw, cost, times), which calls that of the limit
-- i; how many limits there are; and `reply`, with room for one answer.
local function shortcut()
  local times, attempt = ARGV[1] + 0, ARGV[4] + 0
  if #ARGV ~= 4 + 2 * limits_in_all or frozen_until > now or raw[attempt] then
    return false
  end
  local values, ttls, last, use_by = {}, {}, times > 1 and {}, 0
  for i = 1, limits_in_all do
    local place, receipt, left = ARGV[3 + 2 * i] + 0, 5 + 2 * i, 5 + 2 * (limits_in_all + i)
    local value, ttl_us, ends, mark, first_mark, first_left, first_reset, last_mark, last_left, last_reset =
      by_shortcut(i, raw[place], ARGV[4 + 2 * i] + 0, times)
    if not value or not raw[place] and redis.call('EXISTS', KEYS[place]) == 1 then
      return false
    end
    values[i], ttls[i] = value, ttl_us
    reply[receipt], reply[receipt + 1], reply[left], reply[left + 1] = first_mark, mark, first_left, first_reset
    if last then
      last[receipt], last[receipt + 1], last[left], last[left + 1] = last_mark, mark, last_left, last_reset
    end
    if ends > 0 and (use_by == 0 or ends < use_by) then
      use_by = ends
    end
  end
  reply[1], reply[2], reply[3], reply[4], reply[6] = now, times, now, 1, use_by
  if last then
    local size = #reply
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = now, 1, 0, use_by
    for i = 7, size do
      reply[size + i - 2] = last[i]
    end
  end
  for i = 1, limits_in_all do
    redis.call('SET', KEYS[ARGV[3 + 2 * i] + 0], values[i], 'PX', int(ttl_ms(ttls[i])))
  end
  if attempt > 0 then
    keep_answer(attempt, answer_text(reply, 3, limits_in_all), now)
  end
  return true
end

if shortcut() then
  return reply
end
