-- token_bucket: `count` tokens per `period_us`, refilled evenly, into a bucket
-- of `capacity`. Kept as the generic cell rate algorithm (ITU-T I.371) keeps it:
-- one theoretical arrival time (TAT), the instant at which the bucket is full.
--
-- A token is worth period_us/count microseconds. Where that is no integer the
-- remainder is carried as `part`, in units of 1/count microsecond, so that 3/1s
-- is exactly three per second and no rounding adds up.
--
-- State: "<tat_us>" or "<tat_us>+<part>".
local token_bucket = {}

-- The time that n tokens are worth, as whole microseconds and parts.
local function worth(limit, n)
  local parts = n * (limit.period_us % limit.count)
  return n * math.floor(limit.period_us / limit.count) + math.floor(parts / limit.count), parts % limit.count
end

function token_bucket.load(raw)
  if not raw then
    return { tat = 0, part = 0 }
  end
  local plus = string.find(raw, '+', 1, true)
  if plus then
    return { tat = tonumber(string.sub(raw, 1, plus - 1)), part = tonumber(string.sub(raw, plus + 1)) }
  end
  return { tat = tonumber(raw), part = 0 }
end

-- The first instant, not before `from`, at which `cost` tokens are there.
function token_bucket.earliest(state, limit, cost, from)
  local us, part = worth(limit, limit.capacity - cost)
  local at = state.tat - us
  if state.part > part then
    at = at + 1
  end
  return math.max(from, at)
end

-- A bucket hands its future tokens out evenly by itself.
token_bucket.spread = token_bucket.earliest

function token_bucket.take(state, limit, cost, at)
  if state.tat < at then
    state.tat, state.part = at, 0
  end
  local us, part = worth(limit, cost)
  part = part + state.part
  state.tat = state.tat + us + math.floor(part / limit.count)
  state.part = part % limit.count
  return state.tat, state.part
end

-- Takes back what take() gave if nobody took since; tokens that others have
-- built their slots on can not be given to a third.
function token_bucket.give_back(state, limit, cost, tat, part)
  if state.tat ~= tat or state.part ~= part then
    return false
  end
  local us, minus = worth(limit, cost)
  minus = part - minus
  state.tat = tat - us + math.floor(minus / limit.count)
  state.part = minus % limit.count
  return true
end

-- A start may be late by a little without a count being wrong; see Go's Lateness.
function token_bucket.use_by()
  return nil
end

function token_bucket.status(state, limit, now)
  local debt_us = state.tat - now
  if state.part > 0 then
    debt_us = debt_us + 1
  end
  if debt_us <= 0 then
    return limit.capacity, 0
  end
  -- Whole periods first: debt_us * count would leave the exact integers.
  local periods = math.floor(debt_us / limit.period_us)
  local rest = (state.tat - now - periods * limit.period_us) * limit.count + state.part
  local used = periods * limit.count + math.ceil(rest / limit.period_us)
  return math.max(0, limit.capacity - used), debt_us
end

function token_bucket.store(state, _, now)
  local text = int(state.tat)
  if state.part > 0 then
    text = text .. '+' .. int(state.part)
  end
  return text, ttl_ms(state.tat + 1 - now)
end
