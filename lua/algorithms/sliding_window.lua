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
-- The usual request goes to the newest bucket or a later one, and most of the state
-- is then left packed as text. `window` are the buckets from newest-span on, whose
-- sum tells whether the newest has room; `older` those before, which only matter to
-- slots between now and the newest. To insert or give back in between, the text is
-- unpacked: arrays `at` (bucket numbers, ascending) and `costs`. `full` remembers buckets
-- found to have no room, so that nobody looks there again.
--
-- Body: "<newest bucket>/<its cost>/<cost of window and newest>/<cost of all>/<newest -
--       first of window>/<newest - first of older>/<since_us>/<full from>/<full to>/<full
--       for cost>:<older>:<window>", without the line breaks; older and window are
--       ",<cost>" for each bucket that has any, with "+<n>" where n empty ones follow.
--       since_us is when the view began as what another was converted to, or 0. At most
--       span + MAX_AHEAD buckets, whatever the traffic.
local sliding_window = {}

local MAX_AHEAD = 1000 -- slots ahead lie less than so many buckets ahead
local MAX_KEPT = 4000 -- buckets; only a clock that steps back time and again leaves so many

local function bucket_of(limit, at)
  return math.floor(at / limit.extra)
end

local function packed(cost, step)
  if cost >= 1e9 then
    cost = int(cost) -- Lua writes shorter ones in full by itself, and faster
  end
  if step > 1 then
    return ',' .. cost .. '+' .. int(step - 1)
  end
  return ',' .. cost
end

-- The bucket that is packed at a place: its cost, how many buckets on the next one
-- is, and that one's place.
local function read_packed(text, place)
  local _, last, cost, empty = string.find(text, ',(%d+)%+?(%d*)', place)
  return tonumber(cost), 1 + (tonumber(empty) or 0), last + 1
end

-- Where the buckets of a packed text end that come before a given one: the place
-- and number of the first that does not, and what those before it cost.
local function split(text, first, bucket)
  local place, costs = 1, 0
  while first < bucket and place <= #text do
    local cost, step
    cost, step, place = read_packed(text, place)
    first, costs = first + step, costs + cost
  end
  return place, first, costs
end

local function clear(state)
  state.newest, state.newest_cost, state.sum, state.total = nil, 0, 0, 0
  state.older, state.older_first, state.window, state.window_first = '', 0, '', 0
  state.since, state.full, state.at, state.costs = 0, nil, nil, nil
end

-- Forgets what was before a bucket.
local function forget(state, bucket)
  if state.newest < bucket then
    return clear(state)
  end
  local place, first, costs = split(state.older, state.older_first, bucket)
  state.older, state.older_first = string.sub(state.older, place), first
  state.total = state.total - costs
  if state.older == '' then
    place, first, costs = split(state.window, state.window_first, bucket)
    state.window, state.window_first = string.sub(state.window, place), first
    state.sum, state.total = state.sum - costs, state.total - costs
  end
end

-- Turns the text into arrays, for the rest of the call.
local function unpack_buckets(state)
  if state.at then
    return
  end
  local at, costs, n = {}, {}, 0
  if state.newest then
    local bucket = state.older == '' and state.window_first or state.older_first
    for cost, empty in string.gmatch(state.older .. state.window, ',(%d+)%+?(%d*)') do
      n = n + 1
      at[n], costs[n] = bucket, tonumber(cost)
      bucket = bucket + 1
      if empty ~= '' then
        bucket = bucket + tonumber(empty)
      end
    end
    at[n + 1], costs[n + 1] = state.newest, state.newest_cost
  end
  state.at, state.costs = at, costs
end

local function pack_buckets(state, limit)
  local at, costs, since, full = state.at, state.costs, state.since, state.full
  clear(state)
  local n = math.min(#at, MAX_KEPT)
  if n == 0 then
    return
  end
  local older, window = {}, {}
  state.newest, state.newest_cost, state.since, state.full = at[n], costs[n], since, full
  state.sum, state.total, state.older_first, state.window_first = costs[n], costs[n], at[1], at[n]
  for i = n - 1, 1, -1 do
    state.total = state.total + costs[i]
    if at[i] >= at[n] - limit.span then
      state.sum, state.window_first = state.sum + costs[i], at[i]
    end
  end
  for i = 1, n - 1 do
    local part = at[i] < state.window_first and older or window
    part[#part + 1] = packed(costs[i], at[i + 1] - at[i])
  end
  state.older, state.window = table.concat(older), table.concat(window)
end

-- Adds to what a bucket counts, or takes from it if negative, in the arrays.
local function put(state, bucket, more)
  local at, costs = state.at, state.costs
  local i = #at
  while i > 0 and at[i] > bucket do
    i = i - 1
  end
  if i == 0 or at[i] < bucket then
    i = i + 1
    table.insert(at, i, bucket)
    table.insert(costs, i, 0)
  end
  costs[i] = costs[i] + more
  if costs[i] == 0 then
    table.remove(at, i)
    table.remove(costs, i)
  end
  state.newest, state.total = at[#at], state.total + more
end

-- Makes a later bucket the newest.
local function advance(state, limit, bucket)
  if state.newest then
    state.window = state.window .. packed(state.newest_cost, bucket - state.newest)
    local place, first, costs = split(state.window, state.window_first, bucket - limit.span)
    if place > 1 then
      if state.older == '' then
        state.older_first = state.window_first
      end
      state.older = state.older .. string.sub(state.window, 1, place - 1)
      state.window, state.window_first = string.sub(state.window, place), first
      state.sum = state.sum - costs
    end
  else
    state.window_first = bucket
  end
  state.newest, state.newest_cost = bucket, 0
end

local function add(state, limit, bucket, more)
  local newest = state.newest or -1
  if state.at or bucket < newest or (bucket == newest and state.newest_cost + more <= 0) then
    unpack_buckets(state)
    return put(state, bucket, more)
  end
  if bucket > newest then
    advance(state, limit, bucket)
  end
  state.newest_cost = state.newest_cost + more
  state.sum, state.total = state.sum + more, state.total + more
end

local function counted_in(state, bucket)
  if not state.at and bucket == state.newest then
    return state.newest_cost
  end
  unpack_buckets(state)
  for i = #state.at, 1, -1 do
    if state.at[i] == bucket then
      return state.costs[i]
    end
  end
  return 0
end

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

function sliding_window.prepare(limit)
  limit.span = limit.period_us / limit.extra
end

function sliding_window.load(body, limit, now)
  local state = {}
  clear(state)
  if not body then
    return state
  end
  local _, last, newest, newest_cost, sum, total, window, older, since, from, to, cost =
    string.find(body, '^(%d+)/(%d+)/(%d+)/(%d+)/(%d+)/(%d+)/(%d+)/(%d+)/(%d+)/(%d+):')
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
  local colon = string.find(body, ':', last + 1, true)
  state.older, state.window = string.sub(body, last + 1, colon - 1), string.sub(body, colon + 1)
  forget(state, bucket_of(limit, now) - limit.span)
  return state
end

-- What was counted until now keeps its share of the count, rounded up, and its age as a
-- share of the period, one old bucket younger at most. Slots ahead stay.
function sliding_window.convert(was, its, limit, now)
  local state = {}
  clear(state)
  if not was.newest then
    return state
  end
  unpack_buckets(was)
  local same_buckets = its.extra == limit.extra and its.period_us == limit.period_us
  local was_bucket = bucket_of(its, now)
  local at, costs, counted, share = {}, {}, 0, 0 -- the newest first
  for i = #was.at, 1, -1 do
    local cost, bucket = was.costs[i], was.at[i]
    local instant = (bucket + 1) * its.extra - 1
    if bucket <= was_bucket then
      counted = math.min(its.count, counted + cost)
      cost = math.ceil(counted * limit.count / its.count) - share
      share = share + cost
      local age = math.max(0, was_bucket - bucket - 1)
      local parts = age * (limit.period_us % its.span)
      instant = now - age * math.floor(limit.period_us / its.span) - math.floor(parts / its.span)
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
  state.at, state.costs, state.since = {}, {}, now
  for i = #at, 1, -1 do
    put(state, at[i], costs[i])
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

-- When so many more tokens may have started, besides those that are to be left over.
function sliding_window.due(state, limit, n, keep, now)
  local lacking = state.total + n + keep - limit.count
  if lacking <= 0 then
    return now
  end
  unpack_buckets(state)
  local counted = 0
  for i = 1, #state.at do
    counted = counted + state.costs[i]
    if counted >= lacking then
      return math.max(now, (state.at[i] + limit.span + 1) * limit.extra)
    end
  end
  return math.max(now, ((state.newest or bucket_of(limit, now)) + limit.span + 1) * limit.extra)
    + math.floor((lacking - counted - 1) / limit.count) * (limit.period_us + limit.extra)
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
  return string.format(
    '%d/%d/%d/%d/%d/%d/%d/%d/%d/%d:',
    state.newest, state.newest_cost, state.sum, state.total,
    state.newest - state.window_first, state.newest - older_first,
    state.since, from, to, cost
  ) .. state.older .. ':' .. state.window, ttl_ms((state.newest + limit.span + 1) * limit.extra - now)
end

-- What was counted before a change of numbers was counted anew by its share, and
-- can not be told apart any more: it does not come back.
function sliding_window.give_back(state, limit, cost, _, _, start, ends)
  local bucket = bucket_of(limit, ends - 1)
  if cost == 0 or start <= state.since or counted_in(state, bucket) < cost then
    return false
  end
  add(state, limit, bucket, -cost)
  state.full = nil
  return true
end

-- What a start cost counts in its bucket, for as long as that one counts.
function sliding_window.adjust(state, limit, more, _, now, start, ends)
  local bucket = bucket_of(limit, ends - 1)
  if start <= state.since then
    bucket = bucket_of(limit, state.since)
    more = math.max(0, more)
  end
  if more < 0 then
    more = -math.min(-more, counted_in(state, bucket))
    state.full = nil
  end
  if more == 0 or bucket < bucket_of(limit, now) - limit.span then
    return false
  end
  add(state, limit, bucket, more)
  return true
end
