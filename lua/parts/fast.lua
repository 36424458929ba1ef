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
--        before which the starts must be (nil for none); and for the first and the last
--        request the first number of its receipt, remaining and reset_after_us. The second
--        number of a receipt is 0
local fast = {}

-- For a TAT alone, where a token is worth whole microseconds.
function fast.token_bucket(raw, cost, times, place)
  local numbers, capacity, token_us = ARGV[place + 1], ARGV[place + 4] + 0, ARGV[place + 3] / ARGV[place + 2]
  local size, tat = #numbers, now
  if raw then -- behind anything else than a TAT nothing passes here
    tat = string.sub(raw, 1, size) == numbers and tonumber(string.sub(raw, size + 1)) or math.huge
  end
  local first_us = math.max(0, tat - now) + cost * token_us
  local last_us = first_us + (times - 1) * cost * token_us
  if token_us % 1 > 0 or last_us > capacity * token_us then
    return nil
  end
  return numbers .. int(now + last_us), last_us, nil,
    now + first_us, capacity - math.ceil(first_us / token_us), first_us,
    now + last_us, capacity - math.ceil(last_us / token_us), last_us
end

-- For the window of now alone.
function fast.fixed_window(raw, cost, times, place)
  local numbers, count, period_us = ARGV[place + 1], ARGV[place + 2] + 0, ARGV[place + 3] + 0
  local start, taken = -period_us, 0
  if raw then
    start, taken = string.match(raw, '^(%d+):(%d+)$', #numbers + 1)
    if not start or string.sub(raw, 1, #numbers) ~= numbers then
      return nil
    end
    start, taken = start + 0, taken + 0
  end
  if now >= start + period_us then
    start, taken = ARGV[place + 5] == 'first' and now or now - now % period_us, 0
  end
  local ends, left = start + period_us, count - taken - times * cost
  if left < 0 then
    return nil
  end
  return numbers .. int(start) .. ':' .. int(count - left), ends - now, ends,
    start, left + (times - 1) * cost, ends - now,
    start, left, ends - now
end

-- The answer, or nil.
local function answer_fast()
  local limits_in_all = ARGV[1] + 0
  for limit = 2, 9 * limits_in_all, 9 do
    if not fast[ARGV[limit]] or ARGV[limit + 7] ~= '0' then
      return nil
    end
  end
  local name = 2 + 9 * limits_in_all
  local heeds = ARGV[name] == 'ask'
  if frozen_until > now or heeds and raw[2] or not heeds and ARGV[name] ~= 'reserve' then
    return nil
  end
  local run = name + 1 + (heeds and ARGV[name + 1] or 0)
  local costs, times, attempt = run + (heeds and 5 or 2), ARGV[run] + 0, ARGV[run + 3] ~= '0' and ARGV[run + 3] + 0
  if #ARGV ~= costs + 1 + 2 * limits_in_all or attempt and raw[attempt] then
    return nil
  end
  local granted = heeds and math.max(1, ARGV[run + 5] + 0) or 1 -- its place, if it had one
  local reply, size = { now, times, now, granted, 0, 0, 0, 0, 0, 0 }, 4 + 4 * limits_in_all
  local values, ttls, use_by = {}, {}, nil
  for i = 1, limits_in_all do
    local limit, state = 9 * i - 7, ARGV[costs + 2 * i] + 0
    local value, ttl_us, ends, first_mark, first_left, first_reset, last_mark, last_left, last_reset =
      fast[ARGV[limit]](raw[state], ARGV[costs + 2 * i + 1] + 0, times, limit)
    if not value or not raw[state] and redis.call('EXISTS', KEYS[state]) == 1 then
      return nil
    end
    values[i], ttls[i] = value, ttl_us
    local receipt, left = 5 + 2 * i, 5 + 2 * (limits_in_all + i)
    reply[receipt], reply[receipt + 1], reply[left], reply[left + 1] = first_mark, 0, first_left, first_reset
    if times > 1 then
      receipt, left = receipt + size, left + size
      reply[receipt], reply[receipt + 1], reply[left], reply[left + 1] = last_mark, 0, last_left, last_reset
    end
    if ends and (not use_by or ends < use_by) then
      use_by = ends
    end
  end
  reply[6] = use_by or 0
  if times > 1 then
    reply[size + 3], reply[size + 4], reply[size + 5], reply[size + 6] = now, granted, 0, reply[6]
  end
  for i = 1, limits_in_all do
    redis.call('SET', KEYS[ARGV[costs + 2 * i] + 0], values[i], 'PX', int(ttl_ms(ttls[i])))
  end
  if attempt then
    keep_answer(attempt, answer_text(reply, 3, limits_in_all), now)
  end
  return reply
end

local simple = answer_fast()
if simple then
  return simple
end
