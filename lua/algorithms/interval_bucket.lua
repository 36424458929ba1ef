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
-- Body: "<start_us>=<taken>,<taken>,...", where start_us is the latest refill, or the first
--       take.
local interval_bucket = {}

local MAX_AHEAD = 64

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

-- What a refill brings beyond the capacity runs over.
function interval_bucket.prepare(limit)
  limit.count = min(limit.count, limit.capacity)
end

-- Where the period begins that an instant lies in.
local function period_of(state, limit, at)
  local first = state.start or at
  return max(first, at - (at - first) % limit.period_us)
end

local function add(state, limit, start, tokens)
  state.start = state.start or start
  state.ends = max(state.ends, start + limit.period_us)
  state.taken[start], state.lacks = (state.taken[start] or 0) + tokens, nil
end

-- For each period what the bucket lacks in it, and how much more may be taken there: it
-- lacks as much more in the next one, but for what runs over at the refill between them.
-- And when the bucket is full. All that is reckoned once until something changes.
local function lacking(state, limit)
  if state.lacks then
    return state.lacks, state.room, state.full
  end
  local lacks, room, full, first, us = {}, {}, 0, state.start or 0, limit.period_us
  for start = first, state.ends - 1, us do
    lacks[start] = max(0, (lacks[start - us] or 0) - limit.count) + (state.taken[start] or 0)
    full = lacks[start] > 0 and start + ceil(lacks[start] / limit.count) * us or full
  end
  for start = state.ends - us, first, -us do
    local behind = room[start + us] and max(0, room[start + us]) + max(0, limit.count - lacks[start]) or math.huge
    room[start] = min(limit.capacity - lacks[start], behind)
  end
  state.lacks, state.room, state.full = lacks, room, full
  return lacks, room, full
end

-- The first period, not before that of `from`, in which a cost passes, and what the bucket
-- lacks in it.
local function first_period(state, limit, cost, from)
  local lacks, room = lacking(state, limit)
  local start, last = period_of(state, limit, from), state.ends - limit.period_us
  while room[start] do
    if room[start] >= cost then
      return start, lacks[start]
    end
    start = start + limit.period_us
  end
  if not state.start then
    return start, 0
  end
  local refills = max((start - last) / limit.period_us, ceil((lacks[last] + cost - limit.capacity) / limit.count))
  return last + refills * limit.period_us, max(0, lacks[last] - refills * limit.count)
end

-- Periods that ended are forgotten, but for what they leave lacking; and a full bucket.
function interval_bucket.load(body, limit, now)
  local start, list = string.match(body or '', '^(%d+)=([%d,]+)$')
  local state = { ends = 0, taken = {}, is_foreign = body and not start }
  local lacks = 0
  start = tonumber(start)
  for tokens in string.gmatch(list or '', '%d+') do
    lacks = lacks + tokens
    if start + limit.period_us > now then
      add(state, limit, start, lacks)
      lacks = 0
    end
    lacks, start = max(0, lacks - limit.count), start + limit.period_us
  end
  local refills = lacks > 0 and floor((now - start) / limit.period_us) or 0
  if lacks > refills * limit.count then
    add(state, limit, start + refills * limit.period_us, lacks - refills * limit.count)
  end
  return state
end

-- The bucket keeps the share that was used, and the share of the period that has passed.
-- Slots ahead count in the new periods that they lie in.
function interval_bucket.convert(was, its, limit, now)
  local state = { ends = 0, taken = {} }
  if was.start then
    add(state, limit, now - floor(max(0, now - was.start) * limit.period_us / its.period_us),
      ceil(min(was.taken[was.start] or 0, its.capacity) * limit.capacity / its.capacity))
    local last = state.start + (MAX_AHEAD - 1) * limit.period_us
    for start = was.start + its.period_us, was.ends - 1, its.period_us do
      add(state, limit, min(period_of(state, limit, start), last), was.taken[start] or 0)
    end
  end
  return state
end

function interval_bucket.earliest(state, limit, cost, from)
  local start = first_period(state, limit, cost, from)
  return start == state.start and from or max(from, start)
end

-- The tokens of a refill ahead are handed out over its period, in order.
function interval_bucket.spread(state, limit, cost, from)
  local start, lacks = first_period(state, limit, cost, from)
  if start == (state.start or start) then
    return from
  end
  local before = max(0, lacks + limit.count - limit.capacity)
  return max(from, start + floor(before * limit.period_us / limit.count))
end

-- The receipt is when the period of the start begins, and what the bucket lacks then.
function interval_bucket.take(state, limit, cost, at)
  local start = period_of(state, limit, at)
  add(state, limit, start, cost)
  return start, lacking(state, limit)[start]
end

function interval_bucket.overdraw(state, limit, cost, at)
  local start, _, room = interval_bucket.take(state, limit, cost, at), lacking(state, limit)
  add(state, limit, start, -min(cost, max(0, -room[start])))
end

-- Those after which it takes as many refills as after the first.
function interval_bucket.passing(state, limit, cost)
  local lacks = state.taken[state.start] or 0
  local refills = ceil((lacks + cost) / limit.count)
  return state.ends > (state.start or 0) + limit.period_us and 1
    or floor((min(limit.capacity, refills * limit.count) - lacks) / cost)
end

-- How far ahead a slot may lie.
function interval_bucket.horizon(state, limit, now)
  return (state.start or now) + MAX_AHEAD * limit.period_us
end

function interval_bucket.status(state, limit, now)
  local _, room, full = lacking(state, limit)
  return max(0, room[state.start] or limit.capacity), max(0, full - now)
end

-- When so many more tokens may have started, besides those that are to be left over: those
-- of a refill evenly over its period, and after all slots ahead. What a refill brings beyond
-- the capacity runs over, so where some are left over it may bring less.
function interval_bucket.due(state, limit, n, keep, now)
  local lacks, room = lacking(state, limit)
  if n + keep <= (room[state.start] or limit.capacity) then
    return now
  end
  local last = state.start and state.ends - limit.period_us or now
  local over = (lacks[last] or 0) + keep - limit.capacity
  local each, refills = min(limit.count, limit.capacity - keep), max(0, floor(over / limit.count))
  local tokens = n + min(0, over)
  if over > 0 then -- so much the first refill that brings something brings less
    tokens = tokens + each - min(each, (refills + 1) * limit.count - over)
  end
  refills = refills + max(0, ceil(tokens / each))
  return max(now, last + refills * limit.period_us + floor((tokens - 1) % each * limit.period_us / limit.count))
end

function interval_bucket.store(state, limit, now)
  local _, _, full = lacking(state, limit)
  local taken = {}
  for start = state.start or 0, min(state.ends, full) - 1, limit.period_us do
    taken[#taken + 1] = int(state.taken[start] or 0)
  end
  return int(state.start or 0) .. '=' .. table.concat(taken, ','), max(0, ttl_ms(full - now))
end

-- What a start cost counts in its own period, whether anything else is taken there or not.
-- Where that has ended, what it cost more is lacking now, and as much comes back as no
-- refill has brought back since. From other periods than its own nothing comes back.
function interval_bucket.adjust(state, limit, more, _, now, start, lacks)
  local first, us = state.start, limit.period_us
  local own = first and min(period_of(state, limit, start), first + (MAX_AHEAD - 1) * us) or now
  if more < 0 then
    local refills = ceil((own - start) / us)
    local most = own == start and math.huge or refills > 0 and lacks - refills * limit.count or 0
    more = -max(0, min(-more, state.taken[own] or 0, most))
  end
  if more == 0 then
    return false
  end
  add(state, limit, own, more)
  return true
end

function interval_bucket.give_back(state, limit, cost, ...)
  return interval_bucket.adjust(state, limit, -cost, ...)
end
