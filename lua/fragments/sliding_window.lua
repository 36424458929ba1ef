-- sliding_window: `count` tokens in every interval of `period_us`, counted in
-- buckets of `extra`, the precision. Buckets begin at multiples of the precision
-- since the epoch and are known by their number. With span = period/precision, a
-- request of some cost passes in a bucket if no span+1 buckets in a row that
-- contain it would then count more than `count`: the bucket of now, the span
-- before it, and as many after it, where slots ahead are.
--
-- Never over: an interval of one period, both ends included, that begins in
-- bucket b ends in bucket b+span at the latest, so span+1 buckets in a row contain
-- it. A start lies in the bucket that counts it: it comes at its slot or after, and
-- before that bucket's end (use_by). So no interval of one period has starts of
-- more than `count`; except that a task may tell afterwards that it cost more
-- (adjust), and then others wait until that, too, is a period old.
--
-- Few too few: a start at t in bucket b counts until bucket b+span ends, which is
-- at (b+1+span) x precision <= t + precision + period: at most one precision longer
-- than it must.
--
-- Utilisation: let requests of cost 1 never cease, each taking the first instant at
-- which it passes. Then none goes to a bucket while an earlier one has room, so
-- when bucket b ends, b-span..b count `count`, or one more had passed in b. That
-- holds for every b, so each span+1 buckets count `count`: the share used of
-- count per period is period/(period + precision). With costs of up to c it is at
-- least (count-c+1)/count of that.
--
-- A process that needs longer from Redis's answer to a start than what is left of
-- a bucket asks again; so let a bucket be long against that, 10 ms and more.
--
-- The buckets are kept as fragments/buckets.lua says. `full` remembers buckets found to
-- have no room, so that nobody looks there again.
--
-- State: "<precision_us>/<period_us>/<count>:<newest bucket>/<its cost>/<cost of
--        window and newest>/<cost of all>/<newest - first of window>/<newest -
--        first of older>/<since_us>/<full from>/<full to>/<full for cost>:
--        <older>:<window>", without the line breaks and with the numbers it was
--        counted by; older and window are ",<cost>" for each bucket that has any,
--        with "+<n>" where n empty ones follow. since_us is the last change of
--        numbers, or 0. At most span + MAX_AHEAD buckets, whatever the traffic.
local sliding_window = {}

local MAX_AHEAD = 1000 -- slots ahead lie less than so many buckets ahead

-- The first bucket with room for `cost`, not before `bucket`, which is the newest
-- or a later one; what span+1 buckets count that end with it; and what it counts.
local function room_at_end(state, limit, cost, bucket)
  if bucket - limit.span > state.newest then
    return bucket, 0, 0
  end
  local place, first, costs = split(state.window, state.window_first, bucket - limit.span)
  local counted = state.sum - costs
  while counted + cost > limit.count do
    if place > #state.window then
      return state.newest + limit.span + 1, 0, 0
    end
    local step
    bucket = first + limit.span + 1
    costs, step, place = read_packed(state.window, place)
    first, counted = first + step, counted - costs
  end
  return bucket, counted, bucket == state.newest and state.newest_cost or 0
end

-- The same for any bucket. Both kinds of span+1 buckets are walked through once:
-- those that end with `bucket` (at[low..high], `counted`), and those that contain
-- it and end with a later one that counts something (at[tail..edge], `ahead`).
-- Others count no more than one of these.
local function room_between(state, limit, cost, bucket)
  local at, costs, span = state.at, state.costs, limit.span
  local low, high, counted = 1, 0, 0
  local tail, edge, ahead = 1, 0, 0
  local moved
  repeat
    moved = false
    while high < #at and at[high + 1] <= bucket do
      high = high + 1
      counted = counted + costs[high]
    end
    while low <= high and (at[low] < bucket - span or counted + cost > limit.count) do
      if at[low] >= bucket - span then
        bucket, moved = at[low] + span + 1, true
      end
      counted = counted - costs[low]
      low = low + 1
    end
    while edge < #at and at[edge + 1] <= bucket + span do
      edge = edge + 1
      ahead = ahead + costs[edge]
      while at[tail] < at[edge] - span do
        ahead = ahead - costs[tail]
        tail = tail + 1
      end
      if at[edge] > bucket and ahead + cost > limit.count then
        bucket, moved = at[edge] + 1, true
      end
    end
  until not moved
  return bucket, counted, high > 0 and at[high] == bucket and costs[high] or 0
end

local function room(state, limit, cost, from)
  if not state.newest then
    return from, 0, 0
  end
  local full, start = state.full, from
  local known = full and cost >= full.cost and from >= full.from and from < full.to
  if known then
    start = full.to
  end
  local bucket, counted, in_it
  if start >= state.newest and not state.at then
    bucket, counted, in_it = room_at_end(state, limit, cost, start)
  else
    unpack_buckets(state)
    bucket, counted, in_it = room_between(state, limit, cost, start)
  end
  if not known and bucket > from then
    state.full = { from = from, to = bucket, cost = cost }
  elseif known and cost == full.cost then
    full.to = bucket
  end
  return bucket, counted, in_it
end

-- Other numbers than those the state was written with. What was counted until now
-- keeps its share of the count, rounded up, and its age as a share of the period,
-- one old bucket younger at most. Slots ahead stay.
local function rescale(state, limit, now, was_precision_us, was_period_us, was_count)
  unpack_buckets(state)
  local same_buckets = was_precision_us == limit.extra and was_period_us == limit.period_us
  local was_span, was_bucket = was_period_us / was_precision_us, math.floor(now / was_precision_us)
  local at, costs, counted, share = {}, {}, 0, 0 -- the newest first
  for i = #state.at, 1, -1 do
    local cost, bucket = state.costs[i], state.at[i]
    local instant = (bucket + 1) * was_precision_us - 1
    if bucket <= was_bucket then
      counted = math.min(was_count, counted + cost)
      cost = math.ceil(counted * limit.count / was_count) - share
      share = share + cost
      local age = math.max(0, was_bucket - bucket - 1)
      local parts = age * (limit.period_us % was_span)
      instant = now - age * math.floor(limit.period_us / was_span) - math.floor(parts / was_span)
    end
    if not same_buckets then
      bucket = bucket_of(limit, instant)
    end
    if at[#at] == bucket then
      costs[#at] = costs[#at] + cost
    elseif cost > 0 then
      at[#at + 1], costs[#at + 1] = bucket, cost
    end
  end
  clear(state)
  state.at, state.costs, state.since, state.changed = {}, {}, now, true
  for i = #at, 1, -1 do
    put(state, at[i], costs[i])
  end
end

function sliding_window.load(raw, limit, now)
  limit.span = limit.period_us / limit.extra
  limit.numbers = limit.numbers or int(limit.extra) .. '/' .. int(limit.period_us) .. '/' .. int(limit.count) .. ':'
  local state = {}
  clear(state)
  if not raw then
    return state
  end
  local _, head = string.find(raw, '^%d+/%d+/%d+:')
  local last, newest, newest_cost, sum, total, window, older, since, from, to, cost
  if head then
    _, last, newest, newest_cost, sum, total, window, older, since, from, to, cost =
      string.find(raw, '(%d+)/(%d+)/(%d+)/(%d+)/(%d+)/(%d+)/(%d+)/(%d+)/(%d+)/(%d+):', head + 1)
  end
  if not last then
    state.is_foreign = true
    return state
  end
  state.newest, state.newest_cost = tonumber(newest), tonumber(newest_cost)
  state.sum, state.total, state.since = tonumber(sum), tonumber(total), tonumber(since)
  state.window_first, state.older_first = state.newest - window, state.newest - older
  if to ~= '0' then
    state.full = { from = tonumber(from), to = tonumber(to), cost = tonumber(cost) }
  end
  local colon = string.find(raw, ':', last + 1, true)
  state.older, state.window = string.sub(raw, last + 1, colon - 1), string.sub(raw, colon + 1)

  if string.sub(raw, 1, head) == limit.numbers then
    forget(state, bucket_of(limit, now) - limit.span)
    return state
  end
  local precision_us, period_us, count = string.match(raw, '^(%d+)/(%d+)/(%d+)')
  forget(state, math.floor(now / precision_us) - period_us / precision_us)
  if state.newest then
    rescale(state, limit, now, tonumber(precision_us), tonumber(period_us), tonumber(count))
  end
  return state
end

function sliding_window.earliest(state, limit, cost, from)
  if state.total + cost <= limit.count then
    return from
  end
  return math.max(from, room(state, limit, cost, bucket_of(limit, from)) * limit.extra)
end

-- The same for a slot ahead of now: the tasks of a bucket are spread over it in
-- proportion to what it counts already of what it can. No herd at its start; and
-- its last quarter is left to those that wake late.
function sliding_window.spread(state, limit, cost, from, now)
  local bucket, counted, in_it = room(state, limit, cost, bucket_of(limit, from))
  local start = bucket * limit.extra
  if start <= now then
    return from
  end
  local room_us = limit.extra - math.floor(limit.extra / 4)
  return math.max(from, start + math.floor(in_it * room_us / (limit.count - counted + in_it)))
end

-- The receipt is the bucket's start and end, which outlive a change of numbers.
function sliding_window.take(state, limit, cost, at)
  local bucket = bucket_of(limit, at)
  add(state, limit, bucket, cost)
  return bucket * limit.extra, (bucket + 1) * limit.extra
end

function sliding_window.passing(state, limit, cost)
  return math.floor((limit.count - state.total) / cost)
end

-- A start after the end of its bucket would count in the next one.
function sliding_window.use_by(_, limit, at)
  return (bucket_of(limit, at) + 1) * limit.extra
end

function sliding_window.horizon(_, limit, now)
  return (bucket_of(limit, now) + MAX_AHEAD) * limit.extra
end

-- Slots ahead are not left for now, even where some would be.
function sliding_window.status(state, limit, now)
  if not state.newest then
    return limit.count, 0
  end
  return math.max(0, limit.count - state.total), (state.newest + limit.span + 1) * limit.extra - now
end

function sliding_window.store(state, limit, now)
  if state.at then
    pack_buckets(state, limit)
  end
  if not state.newest then
    return '', 0
  end
  -- What is known of buckets before now is of no use, nor true for ever: what they
  -- counted is going to be forgotten.
  local from, to, cost = 0, 0, 0
  if state.full and state.full.to > bucket_of(limit, now) then
    from, to, cost = math.max(state.full.from, bucket_of(limit, now)), state.full.to, state.full.cost
  end
  local older_first = state.older == '' and state.window_first or state.older_first
  return limit.numbers .. string.format(
    '%d/%d/%d/%d/%d/%d/%d/%d/%d/%d:',
    state.newest, state.newest_cost, state.sum, state.total,
    state.newest - state.window_first, state.newest - older_first,
    state.since, from, to, cost
  ) .. state.older .. ':' .. state.window, ttl_ms((state.newest + limit.span + 1) * limit.extra - now)
end
