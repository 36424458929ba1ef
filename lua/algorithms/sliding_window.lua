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
-- Body: "<since_us>/<first bucket>:<cost>,<cost>", a cost for each bucket that counts
--       any, in order, with "+<n>" where n empty ones follow. since_us is when the view
--       began as what another was converted to, or 0. At most span + MAX_AHEAD buckets,
--       whatever the traffic: a call reads and writes them once, and walks through them
--       for each request that does not pass at once.
local sliding_window = {}

local MAX_AHEAD = 1000 -- slots ahead lie less than so many buckets ahead
local MAX_KEPT = 4000 -- buckets; only a clock that steps back time and again leaves so many

local function bucket_of(limit, at)
  return math.floor(at / limit.extra)
end

-- A state is two arrays, the numbers of buckets, ascending, and their costs; the sum of
-- these; when the view began; and for each cost, where this call found room for it.
local function empty_state()
  return { at = {}, costs = {}, total = 0, since = 0, walks = {} }
end

-- Adds to what a bucket counts, or takes from it if negative.
local function add(state, bucket, more)
  local at, costs, i = state.at, state.costs, #state.at
  while i > 0 and at[i] > bucket do
    i = i - 1
  end
  if at[i] ~= bucket then
    i = i + 1
    table.insert(at, i, bucket)
    table.insert(costs, i, 0)
  end
  if more < 0 or at[i + 1] then
    state.walks = {}
  end
  costs[i], state.total = costs[i] + more, state.total + more
end

-- What the buckets from `first` to `last` count.
local function counted(state, first, last)
  local sum, i = 0, #state.at
  while i > 0 and state.at[i] >= first do
    sum = sum + (state.at[i] <= last and state.costs[i] or 0)
    i = i - 1
  end
  return sum
end

-- The first bucket with room for `cost`, not before `from`. Where at[first..last], all
-- within span+1 buckets, leave none, no bucket passes that lies in span+1 buckets with
-- both ends: none from at[last]-span to at[first]+span. For each last, the latest such
-- first closes the most. The next request of that cost in a call goes on from where this
-- walk ends; from the last bucket again, which may count more by then.
local function room(state, limit, cost, from)
  local at, costs, span, walk = state.at, state.costs, limit.span, state.walks[cost]
  if not walk or from < walk.from then
    walk = { from = from, bucket = from, first = 1, last = 1, sum = 0 }
    state.walks[cost] = walk
  elseif from > walk.bucket then
    walk.from, walk.bucket = from, from
  end
  local first, last, sum, bucket = walk.first, walk.last, walk.sum, walk.bucket
  while at[last] and at[last] - span <= bucket do
    sum = sum + costs[last]
    while first < last and sum - costs[first] + cost > limit.count do
      sum = sum - costs[first]
      first = first + 1
    end
    if sum + cost > limit.count and at[last] - at[first] <= span then
      bucket = math.max(bucket, at[first] + span + 1)
    end
    last = last + 1
  end
  walk.bucket, walk.first, walk.last, walk.sum = bucket, first, math.max(1, last - 1), sum - (costs[last - 1] or 0)
  return bucket
end

function sliding_window.prepare(limit)
  limit.span = limit.period_us / limit.extra
end

function sliding_window.load(body, limit, now)
  local state = empty_state()
  local since, first, buckets = string.match(body or '', '^(%d+)/(%d+):(%d[%d,+]*)$')
  state.is_foreign = body and not since
  local at, costs, n, total = state.at, state.costs, 0, 0
  local bucket, oldest = tonumber(first), bucket_of(limit, now) - limit.span
  for cost, empty in string.gmatch(buckets or '', '(%d+)%+?(%d*)') do
    if bucket >= oldest and cost ~= '0' then
      n, total = n + 1, total + cost
      at[n], costs[n] = bucket, cost + 0
    end
    bucket = bucket + 1 + (empty == '' and 0 or empty)
  end
  state.total, state.since = total, n > 0 and tonumber(since) or 0
  return state
end

-- What was counted until now keeps its share of the count, rounded up, and its age as a
-- share of the period, one old bucket younger at most. Slots ahead stay.
function sliding_window.convert(was, its, limit, now)
  local state, was_bucket = empty_state(), bucket_of(its, now)
  state.since = #was.at > 0 and now or 0
  local same_buckets = its.extra == limit.extra and its.period_us == limit.period_us
  local function share(cost)
    return math.ceil(math.min(its.count, cost) * limit.count / its.count)
  end
  local later = counted(was, 0, was_bucket)
  for i, bucket in ipairs(was.at) do
    local cost, instant = was.costs[i], (bucket + 1) * its.extra - 1
    if bucket <= was_bucket then
      later = later - cost
      cost = share(later + cost) - share(later)
      instant = now - math.floor(math.max(0, was_bucket - bucket - 1) * limit.period_us / its.span)
    end
    if cost > 0 then
      add(state, same_buckets and bucket or bucket_of(limit, instant), cost)
    end
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
  local bucket = room(state, limit, cost, bucket_of(limit, from))
  local start = bucket * limit.extra
  if start <= now then
    return from
  end
  local in_it, room_us = counted(state, bucket, bucket), limit.extra - math.floor(limit.extra / 4)
  local most = limit.count - counted(state, bucket - limit.span, bucket - 1)
  return math.max(from, start + math.floor(in_it * room_us / most))
end

-- The receipt is the bucket's start.
function sliding_window.take(state, limit, cost, at)
  local bucket = bucket_of(limit, at)
  add(state, bucket, cost)
  return bucket * limit.extra, 0
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

-- How long until the newest bucket counts no more; 0 if there is none.
local function ends_in(state, limit, now)
  return #state.at > 0 and (state.at[#state.at] + limit.span + 1) * limit.extra - now or 0
end

-- Slots ahead are not left for now, even where some would be.
function sliding_window.status(state, limit, now)
  return math.max(0, limit.count - state.total), ends_in(state, limit, now)
end

-- When so many more tokens may have started, besides those that are to be left over: when
-- as many as are too many by now have ended; and what is more than all, so much later.
function sliding_window.due(state, limit, n, keep, now)
  local rounds = math.floor((n - 1) / (limit.count - keep))
  local lacking, at = state.total + n - rounds * (limit.count - keep) + keep - limit.count, now
  for i, bucket in ipairs(state.at) do
    at = lacking > 0 and math.max(now, (bucket + limit.span + 1) * limit.extra) or at
    lacking = lacking - state.costs[i]
  end
  return at + rounds * (limit.span + 1) * limit.extra
end

function sliding_window.store(state, limit, now)
  local at, parts, n = state.at, {}, math.min(#state.at, MAX_KEPT)
  if state.total == 0 then
    return '', 0
  end
  for i = 1, n do
    local cost, empty = int(state.costs[i]), i < n and at[i + 1] - at[i] - 1 or 0
    parts[i] = empty > 0 and cost .. '+' .. int(empty) or cost
  end
  return string.format('%d/%d:', state.since, at[1]) .. table.concat(parts, ','), ttl_ms(ends_in(state, limit, now))
end

-- What a start cost counts in its bucket, for as long as that one counts. What was
-- counted before a change of numbers was counted anew by its share, and can not be told
-- apart any more: it does not come back, and neither does what others have taken.
function sliding_window.adjust(state, limit, more, _, now, start)
  local bucket = bucket_of(limit, math.max(start, state.since))
  if bucket < bucket_of(limit, now) - limit.span
    or more < 0 and (start <= state.since or counted(state, bucket, bucket) + more < 0) then
    return false
  end
  add(state, bucket, more)
  return true
end
