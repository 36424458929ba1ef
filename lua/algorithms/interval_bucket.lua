-- interval_bucket: token_bucket with `refill: interval`. A bucket of `capacity`
-- gets `count` tokens at once every `period_us`. The first period begins when a
-- full bucket gives its first token, so an idle bucket costs nothing. Over every
-- interval it allows `capacity`, and `count` more for each refill that falls into it.
--
-- Kept as what is taken in each period: in the one of now all that the bucket lacks, and
-- in those behind it, at most MAX_AHEAD in all, what slots ahead take. From that follows
-- what the bucket lacks in each of them, and so how much more a start may take there and
-- leave all slots behind it theirs. So a slot that another limit puts off takes nothing
-- from those before it that a refill brings back, and what is given back is there for
-- others at once.
--
-- Body: "<start_us>:<taken>,<taken>,...", where start_us is the latest refill, or the first
--       take.
local interval_bucket = {}

local MAX_AHEAD = 64

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

-- What a refill brings beyond the capacity runs over.
function interval_bucket.prepare(limit)
  limit.count = min(limit.count, limit.capacity)
end

-- The period that an instant lies in, from 1 for that of now.
local function period_of(state, limit, at)
  return state.start and max(0, floor((at - state.start) / limit.period_us)) + 1 or 1
end

local function start_of(state, limit, period)
  return state.start + (period - 1) * limit.period_us
end

-- For each period what the bucket lacks in it, and how much more may be taken there: it
-- lacks as much more in the next one, but for what runs over at the refill between them.
local function lacking(state, limit)
  local lacks, room, last = {}, {}, #state.taken
  for i = 1, last do
    lacks[i] = max(0, (lacks[i - 1] or 0) - limit.count) + state.taken[i]
  end
  for i = last, 1, -1 do
    local next_one = i < last and max(0, room[i + 1]) + max(0, limit.count - lacks[i]) or math.huge
    room[i] = min(limit.capacity - lacks[i], next_one)
  end
  return lacks, room
end

-- The first period, not before `from`, in which a cost passes, and what the bucket lacks
-- in it.
local function first_period(state, limit, cost, from)
  local lacks, room = lacking(state, limit)
  for period = from, #lacks do
    if room[period] >= cost then
      return period, lacks[period]
    end
  end
  local left = lacks[#lacks]
  local refills = max(from - #lacks, ceil((left + cost - limit.capacity) / limit.count))
  return #lacks + refills, max(0, left - refills * limit.count)
end

-- Periods that ended are forgotten, but for what they leave lacking; and a full bucket.
local function forget(state, limit, now)
  local ended, lacks = period_of(state, limit, now) - 1, lacking(state, limit)
  if ended > 0 then
    local known = min(ended, #lacks)
    local taken = { max(0, lacks[known] - (ended + 1 - known) * limit.count) + (state.taken[ended + 1] or 0) }
    for i = ended + 2, #lacks do
      taken[i - ended] = state.taken[i]
    end
    state.start, state.taken = start_of(state, limit, ended + 1), taken
  end
  while #state.taken > 1 and state.taken[#state.taken] == 0 do
    table.remove(state.taken)
  end
  if #state.taken == 1 and state.taken[1] == 0 then
    state.start = nil
  end
end

function interval_bucket.load(body, limit, now)
  local start, list = string.match(body or '', '^(%d+):([%d,]+)$')
  local state = { start = tonumber(start), taken = {}, is_foreign = body and not start }
  for tokens in string.gmatch(list or '0', '%d+') do
    table.insert(state.taken, tonumber(tokens))
  end
  forget(state, limit, now)
  return state
end

local function add(state, period, tokens)
  for i = #state.taken + 1, period do
    state.taken[i] = 0
  end
  state.taken[period] = state.taken[period] + tokens
end

-- The bucket keeps the share that was used, and the share of the period that has passed.
-- Slots ahead count in the new periods that they lie in.
function interval_bucket.convert(was, its, limit, now)
  local state = { taken = { ceil(min(was.taken[1], its.capacity) * limit.capacity / its.capacity) } }
  if was.start then
    state.start = now - floor(max(0, now - was.start) * limit.period_us / its.period_us)
    for i = 2, #was.taken do
      add(state, min(MAX_AHEAD, period_of(state, limit, start_of(was, its, i))), was.taken[i])
    end
  end
  return state
end

function interval_bucket.earliest(state, limit, cost, from)
  local period = first_period(state, limit, cost, period_of(state, limit, from))
  return period == 1 and from or max(from, start_of(state, limit, period))
end

-- The tokens of a refill ahead are handed out over its period, in order.
function interval_bucket.spread(state, limit, cost, from)
  local period, lacks = first_period(state, limit, cost, period_of(state, limit, from))
  if period == 1 then
    return from
  end
  local before = max(0, lacks + limit.count - limit.capacity)
  return max(from, start_of(state, limit, period) + floor(before * limit.period_us / limit.count))
end

-- The receipt is when the period of the start begins, and what the bucket lacks then.
function interval_bucket.take(state, limit, cost, at)
  state.start = state.start or at
  local period = period_of(state, limit, at)
  add(state, period, cost)
  return start_of(state, limit, period), lacking(state, limit)[period]
end

function interval_bucket.overdraw(state, limit, cost, at)
  interval_bucket.take(state, limit, cost, at)
  local period, _, room = period_of(state, limit, at), lacking(state, limit)
  add(state, period, -min(cost, max(0, -room[period])))
end

-- Those after which it takes as many refills as after the first.
function interval_bucket.passing(state, limit, cost)
  if #state.taken > 1 then
    return 1
  end
  local refills = ceil((state.taken[1] + cost) / limit.count)
  return floor((min(limit.capacity, refills * limit.count) - state.taken[1]) / cost)
end

-- How far ahead a slot may lie.
function interval_bucket.horizon(state, limit, now)
  return (state.start or now) + MAX_AHEAD * limit.period_us
end

-- When the bucket is full again.
local function full_at(state, limit, lacks)
  return start_of(state, limit, #lacks) + ceil(lacks[#lacks] / limit.count) * limit.period_us
end

function interval_bucket.status(state, limit, now)
  local lacks, room = lacking(state, limit)
  return max(0, room[1]), state.start and full_at(state, limit, lacks) - now or 0
end

-- When so many more tokens may have started, besides those that are to be left over: those
-- of a refill evenly over its period, and after all slots ahead.
function interval_bucket.due(state, limit, n, keep, now)
  local lacks, room = lacking(state, limit)
  if n + keep <= room[1] then
    return now
  end
  local beyond = lacks[#lacks] + n + keep - limit.capacity
  local refills = ceil(beyond / limit.count)
  local before = beyond - (refills - 1) * limit.count - 1
  return max(now, (state.start or now) + (#lacks - 1 + refills) * limit.period_us
    + floor(before * limit.period_us / limit.count))
end

function interval_bucket.store(state, limit, now)
  if not state.start then
    return '', 0
  end
  return int(state.start) .. ':' .. table.concat(state.taken, ','), ttl_ms(full_at(state, limit, (lacking(state, limit))) - now)
end

-- Takes back tokens of a take; of a period that ended only those that no refill has
-- brought back since.
function interval_bucket.give_back(state, limit, tokens, _, now, start, lacks)
  local period = state.start and floor((start - state.start) / limit.period_us) + 1
  if not period then
    return false
  end
  local most = period > 1 and (state.taken[period] or 0) or min(state.taken[1], lacks + (period - 1) * limit.count)
  if min(tokens, most) <= 0 then
    return false
  end
  add(state, max(1, period), -min(tokens, most))
  forget(state, limit, now)
  return true
end

function interval_bucket.adjust(state, limit, more, _, now, start, lacks)
  if more < 0 then
    return interval_bucket.give_back(state, limit, -more, nil, now, start, lacks)
  end
  state.start = state.start or now
  add(state, 1, more)
  return true
end
