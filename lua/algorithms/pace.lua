-- pace: a rate that the fleet found out, for an upstream that refuses without saying
-- how much it allows. It stands beside a declared limit and is never above it.
--
-- The curve is CUBIC's (RFC 9438) as the adaptive retry mode of AWS's SDKs uses it:
-- a refusal at a rate of w cuts the rate to BETA x w; from there it climbs as
-- w + SCALE x (t - K)^3, fast at first and flat near w, where K is when it would be
-- w again. Two things differ. It stays just below w, at NEAR, for as long as HOLDS
-- says, longer each time that a refusal comes at about the same rate again: there is
-- the limit, and each probe of it costs a refusal. And where w is slow, time is
-- counted in units in which w is SLOW tokens, because a curve in seconds would climb
-- to many times w between one call and the next.
--
-- Costs are spaced evenly, without a burst.
--
-- A refusal cuts the rate once, however many calls meet it: only for a call that was
-- sent after the last cut, and no sooner than GAP_US after it or a period of the
-- limit, for what was used up stays used up until then.
--
-- count, period_us are the declared limit's.
--
-- State: "<w>/<cut_us>/<repeats>/<free_us>": w in millionths of a token per second,
--        when the rate was last cut, how often in a row that was at about the same
--        rate, and when the next token is free.
local pace = {}

local BETA, SCALE, NEAR = 0.7, 0.4, 0.95
local SLOW, GAP_US, MOST_REPEATS = 10, 1000000, 5
local LEAST = 0.01 -- of the declared rate: never to zero

local function declared(limit)
  return limit.count * 1e12 / limit.period_us
end

-- The curve: its unit of time in us, w in tokens per unit; and in units, when it is at w
-- again, and until when it stays near it.
local function curve(state)
  local unit = 1e6 * math.max(1, SLOW * 1e6 / state.w)
  local w = state.w * unit / 1e12
  local k = (w * (1 - BETA) / SCALE) ^ (1 / 3)
  return unit, w, k, k + k * 2 ^ state.repeats
end

-- The rate at an instant, in millionths of a token per second.
local function rate(state, limit, at)
  local unit, w, k, till = curve(state)
  local t = math.max(0, at - state.cut_us) / unit
  local near = math.min(NEAR * w, w + SCALE * (math.min(t, k) - k) ^ 3)
  return math.min(declared(limit), (t < till and near or NEAR * w + SCALE * (t - till) ^ 3) * 1e12 / unit)
end

-- When the rate is the declared one again.
local function ends(state, limit)
  local unit, w, _, till = curve(state)
  local climb = math.max(0, declared(limit) * unit / 1e12 - NEAR * w)
  return state.cut_us + math.ceil((till + (climb / SCALE) ^ (1 / 3)) * unit)
end

-- How long so many tokens keep the next one away.
local function worth(state, limit, tokens, at)
  return math.ceil(tokens * 1e12 / rate(state, limit, at))
end

function pace.load(raw, limit, now)
  local w, cut, repeats, free = string.match(raw or '', '^(%d+)/(%d+)/(%d+)/(%d+)$')
  local state = {
    is_foreign = raw and not w,
    w = tonumber(w), cut_us = tonumber(cut), repeats = tonumber(repeats), free_us = tonumber(free),
  }
  if w and now >= ends(state, limit) then
    state.w = nil -- the declared limit is enough
  end
  return state
end

function pace.earliest(state, _, _, from)
  return state.w and math.max(from, state.free_us) or from
end

pace.spread = pace.earliest

function pace.take(state, limit, cost, at)
  if not state.w then
    return 0, 0
  end
  local us = worth(state, limit, cost, at)
  state.free_us = math.max(state.free_us, at) + us
  return state.free_us, us
end

function pace.passing(state)
  return state.w and 1 or math.huge
end

-- When so many more tokens may have started, besides those that are to be left over.
function pace.due(state, limit, n, keep, now)
  return state.w and math.max(now, state.free_us) + math.floor((n + keep - 1) * 1e12 / rate(state, limit, now)) or now
end

-- -1 where the rate is the declared one; else what it allows per period.
function pace.status(state, limit, now)
  if not state.w then
    return -1, 0
  end
  return math.max(1, math.floor(rate(state, limit, now) * limit.period_us / 1e12 + 0.5)), math.max(0, state.free_us - now)
end

function pace.save(state, limit, now, key)
  if not state.w then
    return
  end
  local text = string.format('%d/%d/%d/%d', state.w, state.cut_us, state.repeats, state.free_us)
  local left = math.max(ends(state, limit), state.free_us) - now
  redis.call('SET', key, text, 'PX', int(math.max(1, ttl_ms(left))))
end

-- The newest reservation can be taken back as if it had never been.
function pace.give_back(state, _, _, _, _, free, us)
  if not state.w or state.free_us ~= free then
    return false
  end
  state.free_us = free - us
  return true
end

function pace.adjust(state, limit, more, _, now)
  if not state.w or more < 0 then
    return false
  end
  state.free_us = math.max(state.free_us, now) + worth(state, limit, more, now)
  return true
end

-- Learns from refusals that do not say for how long: cuts the rate for a call that was sent
-- at some instant and refused. The reply is whether it did.
function pace.hear(state, limit, said, now)
  local w, repeats = declared(limit), 0
  if not said.is_slow then
    return 0
  elseif state.w then
    if said.sent_us < state.cut_us or now < state.cut_us + math.min(GAP_US, limit.period_us) then
      return 0
    end
    w = rate(state, limit, said.sent_us)
    if w > 0.8 * state.w and w < 1.25 * state.w then
      repeats = math.min(MOST_REPEATS, state.repeats + 1)
    end
  end
  state.w = math.max(w, declared(limit) * LEAST)
  state.cut_us, state.repeats, state.free_us = now, repeats, math.max(now, state.free_us or 0)
  return 1
end
