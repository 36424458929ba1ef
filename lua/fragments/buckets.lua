-- buckets: what sliding_window counts, by the number of the bucket.
--
-- The usual request goes to the newest bucket or a later one, and most of the state
-- is then left packed as text. `window` are the buckets from newest-span on, whose
-- sum tells whether the newest has room; `older` those before, which only matter to
-- slots between now and the newest. To insert or give back in between, the text is
-- unpacked: arrays `at` (bucket numbers, ascending) and `costs`.

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
