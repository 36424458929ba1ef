-- fast: most calls of reserve and ask are simple. Nothing stands in the way of their
-- requests, which all pass now, and nobody is in line. Such a call is answered here, for
-- only to make the tables and functions that come behind this takes longer than to decide.
-- The answer and the states are the same as theirs. In any other case nothing is changed,
-- and the call is up to them.
--
-- An algorithm tells what becomes of a simple state of one view:
--   pass_<algorithm>(raw, cost, times, limit)
--        for so many requests of that cost, one after the other; raw as MGET has it, and
--        the limit's arguments from that place on. Returns nil if the state is not simple
--        or not all of them pass now; or else the new value, its TTL in us, the instant
--        before which the starts must be (nil for none); and for the first and the last
--        request the first number of its receipt, remaining and reset_after_us. The second
--        number of a receipt is 0

-- For a TAT alone, where a token is worth whole microseconds.
local function pass_token_bucket(raw, cost, times, limit)
  local numbers, capacity, token_us, tat = ARGV[limit + 1], ARGV[limit + 4] + 0, ARGV[limit + 3] / ARGV[limit + 2], now
  if raw then -- behind anything else than a TAT nothing passes here
    local size = #numbers
    tat = string.sub(raw, 1, size) == numbers and tonumber(string.sub(raw, size + 1)) or math.huge
  end
  local first_us = (tat > now and tat - now or 0) + cost * token_us
  local last_us = first_us + (times - 1) * cost * token_us
  if token_us % 1 > 0 or last_us > capacity * token_us then
    return nil
  end
  return string.format('%s%d', numbers, now + last_us), last_us, nil,
    now + first_us, capacity - math.ceil(first_us / token_us), first_us,
    now + last_us, capacity - math.ceil(last_us / token_us), last_us
end

-- For the window of now alone.
local function pass_fixed_window(raw, cost, times, limit)
  local numbers, count, period_us = ARGV[limit + 1], ARGV[limit + 2] + 0, ARGV[limit + 3] + 0
  local start, taken = -period_us, 0
  if raw then
    start, taken = string.match(raw, '^(%d+):(%d+)$', #numbers + 1)
    if not start or string.sub(raw, 1, #numbers) ~= numbers then
      return nil
    end
    start, taken = start + 0, taken + 0
  end
  if now >= start + period_us then
    start, taken = ARGV[limit + 5] == 'first' and now or now - now % period_us, 0
  end
  local ends, left = start + period_us, count - taken - times * cost
  if left < 0 then
    return nil
  end
  return string.format('%s%d:%d', numbers, start, count - left), ends - now, ends,
    start, left + (times - 1) * cost, ends - now,
    start, left, ends - now
end

-- The answer, or nil.
local function answer_fast()
  local limits_in_all = ARGV[1] + 0
  local limits_end = 1 + 9 * limits_in_all
  local name, run = ARGV[limits_end + 1], limits_end + 2
  local heeds = name == 'ask'
  if frozen_until > now or heeds and raw[2] or not heeds and name ~= 'reserve' then
    return nil
  end
  if heeds then
    run = run + 1 -- the tasks in line
  end
  local reply, size, values, ttls = { now, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, 1, {}, {}
  repeat
    local times, granted, argument = ARGV[run] + 0, 1, run + 4
    if ARGV[run + 3] ~= '0' then -- an attempt
      return nil
    end
    if heeds then
      granted, argument = math.max(1, ARGV[run + 5] + 0), run + 7 -- its place, if it had one
    end
    local answers, use_by = times > 1 and 2 or 1, 0
    local receipt = size + 6
    for limit = 2, limits_end, 9 do
      local algorithm, state = ARGV[limit], ARGV[argument] + 0
      local pass = ARGV[limit + 7] == '0'
        and (algorithm == 'token_bucket' and pass_token_bucket or algorithm == 'fixed_window' and pass_fixed_window)
      if not pass then
        return nil
      end
      local before = values[state] or raw[state]
      local value, ttl_us, ends, mark, left, reset_us, last_mark, last_left, last_reset_us =
        pass(before, ARGV[argument + 1] + 0, times, limit)
      if not value or not before and redis.call('EXISTS', KEYS[state]) == 1 then
        return nil
      end
      values[state], ttls[state] = value, ttl_us
      use_by = ends and (use_by == 0 or ends < use_by) and ends or use_by
      local status = receipt + 2 * limits_in_all
      reply[receipt], reply[receipt + 1], reply[status], reply[status + 1] = mark, 0, left, reset_us
      if answers == 2 then
        local last = 4 + 4 * limits_in_all
        reply[receipt + last], reply[receipt + last + 1] = last_mark, 0
        reply[status + last], reply[status + last + 1] = last_left, last_reset_us
      end
      receipt, argument = receipt + 2, argument + 2
    end
    size = size + 1
    reply[size] = times
    for _ = 1, answers do
      reply[size + 1], reply[size + 2], reply[size + 3], reply[size + 4] = now, granted, 0, use_by
      size = size + 4 + 4 * limits_in_all
    end
    run = argument
  until not ARGV[run]
  for state, value in pairs(values) do
    redis.call('SET', KEYS[state], value, 'PX', int(ttl_ms(ttls[state])))
  end
  return reply
end

local simple = answer_fast()
if simple then
  return simple
end
