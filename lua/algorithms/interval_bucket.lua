-- interval_bucket: token_bucket with `refill: interval`. A bucket of `capacity`
-- gets `count` tokens at once every `period_us`. The first period begins when a
-- full bucket gives its first token, so an idle bucket costs nothing. Over every
-- interval it allows `capacity`, and `count` more for each refill that falls into it.
--
-- Kept as what is taken: refills make it less, never less than nothing. What is
-- taken for slots ahead is counted at once, and may exceed the capacity by what
-- the refills until then bring. So while a slot lies ahead, only the newest can be
-- given back: a refill that finds less taken than was reckoned would run over, and
-- the slots behind it would not find their tokens. What others give back between the
-- latest refill and the next is `free` for a start there, which is all the same to a
-- bucket; if there is none, it is gone.
--
-- Body: "<start_us>:<taken>:<last_us>" or, with free tokens,
--       "<start_us>:<taken>-<free>:<last_us>": start_us is the latest refill (or the first
--       take), and last_us is the latest slot. Where the limit keeps something, what
--       parts/spare.lua says comes behind it, in tokens.
local interval_bucket = {}
local spare = make.spare()

-- What a refill brings beyond the capacity runs over.
function interval_bucket.prepare(limit)
  limit.count = math.min(limit.count, limit.capacity)
end

-- How many refills there are from `start` until an instant.
local function refills_until(limit, start, at)
  return math.max(0, math.floor((at - start) / limit.period_us))
end

function interval_bucket.load(body, limit, now)
  local start, taken, free, last, left_over = string.match(body or '', '^(%d+):(%d+)%-?(%d*):(%d+)(!?[%d,]*)$')
  if not start then
    return { taken = 0, free = 0, last = 0, is_foreign = body and true }
  end
  local state = { start = tonumber(start), taken = tonumber(taken), free = tonumber(free) or 0, last = tonumber(last) }
  if limit.keeps then
    state.spare = spare.load(left_over, now, state.last)
  end
  local refills = refills_until(limit, state.start, now)
  if refills > 0 then
    state.start, state.taken, state.free = state.start + refills * limit.period_us, state.taken - refills * limit.count, 0
    if state.taken <= 0 then
      state.start, state.taken, state.last = nil, 0, 0
    end
  end
  return state
end

-- The bucket keeps the share that was used, and the share of the period that has passed.
-- Slots ahead stay where they are, and leave an empty bucket behind.
function interval_bucket.convert(was, its, limit, now)
  local state = { taken = 0, free = 0, last = was.last }
  if was.start and was.last > now then
    state.start, state.taken = was.last, limit.capacity
  elseif was.start then
    state.taken = math.ceil(math.min(was.taken, its.capacity) * limit.capacity / its.capacity)
    state.start = now - math.floor(math.max(0, now - was.start) * limit.period_us / its.period_us)
  end
  state.spare = limit.keeps and spare.load('', now, state.last) or nil
  return state
end

-- When the bucket is full again.
local function full_at(state, limit)
  return state.start + math.ceil(state.taken / limit.count) * limit.period_us
end

-- How many refills it takes until `cost` tokens are there.
local function refills_for(state, limit, cost)
  return math.max(0, math.ceil((state.taken + cost - limit.capacity) / limit.count))
end

-- Whether free tokens suffice for a start at that instant.
local function finds_free(state, limit, cost, at)
  return state.free >= cost and state.free > 0 and at >= state.start and at < state.start + limit.period_us
end

-- How many refills a start at that instant or later waits for.
local function waits_for(state, limit, cost, from)
  if finds_free(state, limit, cost, from) or spare.suffices(state.spare, cost, from) then
    return 0
  end
  return refills_for(state, limit, cost)
end

function interval_bucket.earliest(state, limit, cost, from)
  local refills = waits_for(state, limit, cost, from)
  return refills == 0 and from or math.max(from, state.start + refills * limit.period_us)
end

-- The tokens of a refill ahead are handed out over its period, in order.
function interval_bucket.spread(state, limit, cost, from)
  local refills = waits_for(state, limit, cost, from)
  if refills == 0 then
    return from
  end
  local before = math.max(0, state.taken - limit.capacity - (refills - 1) * limit.count)
  return math.max(from, state.start + refills * limit.period_us + math.floor(before * limit.period_us / limit.count))
end

-- Takes where something is kept. Refills that are on their way to the slot may bring
-- more than is taken, and what runs over must not bring back the slot's own tokens.
local function take_keeping(state, limit, cost, at, now, refills)
  local before = limit.capacity - state.taken
  state.taken = math.max(state.taken, refills * limit.count) + cost
  local after = limit.capacity - (state.taken - refills * limit.count)
  state.spare = spare.note(state.spare, before, after, cost, at, now)
end

-- The receipt is the latest refill and what is taken then.
function interval_bucket.take(state, limit, cost, at, now)
  state.start = state.start or at
  if finds_free(state, limit, cost, at) then
    state.free = state.free - cost
    return state.start, 0
  end
  local refills = refills_until(limit, state.start, at)
  if limit.keeps then
    take_keeping(state, limit, cost, at, now, refills)
  elseif refills <= refills_for(state, limit, cost) then
    state.taken = state.taken + cost
  else
    -- Another limit put the slot off. The tokens must be there then, so what is
    -- taken now stays taken, and refills go on from there.
    state.taken = math.max(state.taken, math.max(0, state.taken - refills * limit.count) + cost)
    state.start, state.free = state.start + refills * limit.period_us, 0
  end
  state.last = math.max(state.last, at)
  return state.start, state.taken
end

function interval_bucket.overdraw(state, limit, cost, at, now)
  local start, before = state.start, state.taken
  interval_bucket.take(state, limit, cost, at, now)
  local refills = refills_until(limit, state.start, at)
  local most = limit.capacity + refills * limit.count
  state.taken = math.min(state.taken, start == state.start and math.max(before, most) or most)
end

-- Those after which it takes as many refills as after the first.
function interval_bucket.passing(state, limit, cost)
  if state.free > 0 then
    return 1
  end
  local refills = math.ceil((state.taken + cost) / limit.count)
  return math.floor((math.min(limit.capacity, refills * limit.count) - state.taken) / cost)
end

function interval_bucket.status(state, limit, now)
  if not state.start then
    return limit.capacity, 0
  end
  return math.max(0, limit.capacity - state.taken) + state.free, full_at(state, limit) - now
end

-- When so many more tokens may have started, besides those that are to be left over: those
-- of a refill evenly over its period. What it brings beyond the capacity runs over, so where
-- some are left over it may bring less. The first refills make up for slots ahead.
function interval_bucket.due(state, limit, n, keep, now)
  local over = state.taken + keep - limit.capacity
  if n - state.free + over <= 0 then
    return now
  end
  local each, refills = math.min(limit.count, limit.capacity - keep), math.max(0, math.floor(over / limit.count))
  local tokens = math.max(1, n - state.free + math.min(0, over))
  if over > 0 then
    tokens = tokens + each - math.min(each, (refills + 1) * limit.count - over)
  end
  local before = (tokens - 1) % each
  refills = refills + math.ceil(tokens / each)
  return (state.start or now) + refills * limit.period_us + math.floor(before * limit.period_us / limit.count)
end

function interval_bucket.store(state, limit, now)
  if not state.start or state.taken == 0 then
    return '', 0
  end
  local taken = int(state.taken) .. (state.free > 0 and '-' .. int(state.free) or '')
  return string.format('%d:%s:%d', state.start, taken, state.last) .. spare.store(state.spare),
    ttl_ms(full_at(state, limit) - now)
end

-- Takes back tokens of a take: those that no refill has brought back since.
local function take_back(state, limit, tokens, now, start, taken)
  local left = taken - refills_until(limit, start, now) * limit.count
  if not state.start or state.last > now and left ~= state.taken then
    return false
  end
  tokens = math.min(tokens, left, state.taken)
  state.taken = state.taken - math.max(0, tokens)
  return tokens > 0
end

function interval_bucket.give_back(state, limit, cost, slot, now, start, taken)
  if take_back(state, limit, cost, now, start, taken) then
    return true
  end
  if not state.start or slot < state.start or slot >= state.start + limit.period_us then
    return false
  end
  state.free = math.min(state.free + cost, state.taken)
  return cost > 0
end

function interval_bucket.adjust(state, limit, more, _, now, start, taken)
  if more < 0 then
    return take_back(state, limit, -more, now, start, taken)
  end
  state.start = state.start or now
  state.taken = state.taken + more
  if state.spare then
    state.spare.low = 0
  end
  return true
end
