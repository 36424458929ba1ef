-- fast: most calls of reserve are simple. All their requests are equal, nothing stands
-- in their way, and nobody is in line. Such a call is answered here, for only to make the
-- tables and functions that come behind this takes longer. The answer and the states are
-- the same as theirs. In any other case nothing is changed, and the call is up to them.
--
-- An algorithm tells what becomes of a simple state of one view:
--   fast.<algorithm>(raw, cost, times, place)
--        for so many requests of that cost, one after the other; raw as MGET has it, and
--        the limit's arguments from that place on. Returns nil if the state is not simple
--        or not all of them pass now; or else the new value, its TTL in us, the instant
--        before which the starts must be (0 for none), the second number of all receipts;
--        and for the first and for the last request the first number of its receipt,
--        remaining and reset_after_us
local fast = {}

-- For a TAT alone, where a token is worth whole microseconds.
function fast.token_bucket(raw, cost, times, place)
  local numbers, capacity = ARGV[place + 1], ARGV[place + 4] + 0
  local token_us = ARGV[place + 3] / ARGV[place + 2]
  local tat, size = now, #numbers
  if token_us % 1 > 0 then
    return nil
  elseif raw then
    local known = string.sub(raw, 1, size) == numbers and tonumber(string.sub(raw, size + 1))
    if not known then
      return nil
    elseif known > now then
      tat = known
    end
  end
  local first_us, last_us = tat + cost * token_us - now, tat + times * cost * token_us - now
  if last_us > capacity * token_us then
    return nil
  end
  return numbers .. int(now + last_us), last_us, 0, 0,
    now + first_us, capacity - math.ceil(first_us / token_us), first_us,
    now + last_us, capacity - math.ceil(last_us / token_us), last_us
end

-- For the window of now alone.
function fast.fixed_window(raw, cost, times, place)
  local numbers, count, period_us = ARGV[place + 1], ARGV[place + 2] + 0, ARGV[place + 3] + 0
  local start, taken
  if raw then
    if string.sub(raw, 1, #numbers) ~= numbers then
      return nil
    end
    local from, tokens = string.match(raw, '^(%d+):(%d+)$', #numbers + 1)
    if not from then
      return nil
    end
    start, taken = from + 0, tokens + 0
  end
  if not start or now >= start + period_us then
    start, taken = ARGV[place + 5] == 'first' and now or now - now % period_us, 0
  end
  if taken + times * cost > count then
    return nil
  end
  local ends = start + period_us
  return numbers .. int(start) .. ':' .. int(taken + times * cost), ends - now, ends, 0,
    start, count - taken - cost, ends - now,
    start, count - taken - times * cost, ends - now
end

-- The answer, or nil.
local function answer_fast()
  local limits_in_all = ARGV[1] + 0
  for limit = 2, 9 * limits_in_all, 9 do
    if not fast[ARGV[limit]] or ARGV[limit + 7] ~= '0' then
      return nil
    end
  end
  local name, line_start = 2 + 9 * limits_in_all, 0
  local run = name + 1
  if ARGV[name] == 'ask' and not raw[2] then
    run, line_start = name + 1 + ARGV[name + 1], 3
  elseif ARGV[name] ~= 'reserve' then
    return nil
  end
  local times, attempt = ARGV[run] + 0, ARGV[run + 3] ~= '0' and ARGV[run + 3] + 0
  if #ARGV ~= run + 3 + line_start + 2 * limits_in_all or frozen_until > now or attempt and raw[attempt] then
    return nil
  end
  local costs = run + 2 + line_start
  local granted = line_start > 0 and math.max(1, ARGV[run + 5] + 0) or 1 -- its place, if it had one
  local reply = { now, times, now, granted, 0, 0, 0, 0, 0, 0 }
  local values, ttls, last, use_by = {}, {}, times > 1 and {}, 0
  for i = 1, limits_in_all do
    local limit, state = 9 * i - 7, ARGV[costs + 2 * i] + 0
    local value, ttl_us, ends, mark, first_mark, first_left, first_reset, last_mark, last_left, last_reset =
      fast[ARGV[limit]](raw[state], ARGV[costs + 2 * i + 1] + 0, times, limit)
    if not value or not raw[state] and redis.call('EXISTS', KEYS[state]) == 1 then
      return nil
    end
    values[i], ttls[i] = value, ttl_us
    local receipt, left = 5 + 2 * i, 5 + 2 * (limits_in_all + i)
    reply[receipt], reply[receipt + 1], reply[left], reply[left + 1] = first_mark, mark, first_left, first_reset
    if last then
      last[receipt], last[receipt + 1], last[left], last[left + 1] = last_mark, mark, last_left, last_reset
    end
    if ends > 0 and (use_by == 0 or ends < use_by) then
      use_by = ends
    end
  end
  reply[6] = use_by
  if last then
    local size = 6 + 4 * limits_in_all
    reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = now, granted, 0, use_by
    for i = 7, size do
      reply[size + i - 2] = last[i]
    end
  end
  for i = 1, limits_in_all do
    redis.call('SET', KEYS[ARGV[costs + 2 * i] + 0], values[i], 'PX', int(ttl_ms(ttls[i])))
  end
  if attempt then
    keep_answer(attempt, answer_text(reply, 3, limits_in_all), now)
  end
  return reply
end

do
  local answer = answer_fast()
  if answer then
    return answer
  end
end
