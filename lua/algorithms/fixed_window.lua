-- fixed_window: `count` tokens in each window of `period_us`. Windows begin at
-- multiples of the period since the epoch (anchor clock), or with the first
-- request after the last window ended (anchor first).
--
-- Windows ahead of now are kept too, because a waiting task has its slot there;
-- at most MAX_AHEAD of them.
--
-- Body: "<start_us of the first window kept>:<taken>,<taken>,...".
local fixed_window = {}

local MAX_AHEAD = 64

-- Where the window begins that `at` lies in, and its place in the state.
local function window_of(state, limit, at)
  if state.start then
    local ahead = math.max(0, math.floor((at - state.start) / limit.period_us))
    return state.start + ahead * limit.period_us, ahead + 1
  end
  if limit.option == 'first' then
    return at, 1
  end
  return at - at % limit.period_us, 1
end

-- Windows that ended are forgotten.
local function forget(state, period_us, now)
  local ended = math.max(0, math.floor((now - state.start) / period_us))
  if ended >= #state.taken then
    state.start, state.taken = nil, {}
  elseif ended > 0 then
    state.start = state.start + ended * period_us
    for i = 1, #state.taken do
      state.taken[i] = state.taken[i + ended]
    end
  end
end

function fixed_window.load(body, limit, now)
  local state = { taken = {} }
  if body then
    local start, taken = string.match(body, '^(%d+):([%d,]+)$')
    if not start then
      return { taken = {}, is_foreign = true }
    end
    state.start = tonumber(start)
    state.taken[1] = tonumber(taken) -- mostly there is one window
    for tokens in string.gmatch(state.taken[1] and '' or taken, '%d+') do
      state.taken[#state.taken + 1] = tonumber(tokens)
    end
    forget(state, limit.period_us, now)
  end
  return state
end

local function add(state, place, tokens)
  for i = #state.taken + 1, place do
    state.taken[i] = 0
  end
  state.taken[place] = state.taken[place] + tokens
end

-- The share that was used of the open window is used of the new one, and the share of its
-- time that has passed has passed of it, unless windows begin by the clock. Slots ahead
-- count in the new windows that they lie in.
function fixed_window.convert(was, its, limit, now)
  local state = { taken = {} }
  if not was.start then
    return state
  end
  if its.period_us == limit.period_us then
    state.start = was.start
  elseif limit.option == 'first' then
    state.start = now - math.floor(math.max(0, now - was.start) * limit.period_us / its.period_us)
  else
    state.start = now - now % limit.period_us
  end
  for i = 1, math.min(#was.taken, MAX_AHEAD) do
    local tokens = i == 1 and math.ceil(was.taken[1] * limit.count / its.count) or was.taken[i]
    local _, place = window_of(state, limit, math.max(now, was.start + (i - 1) * its.period_us))
    if place <= MAX_AHEAD then
      add(state, place, tokens)
    end
  end
  return state
end

-- The first instant, not before `from`, whose window has room for `cost`.
function fixed_window.earliest(state, limit, cost, from)
  local start, place = window_of(state, limit, from)
  local at = from
  while (state.taken[place] or 0) + cost > limit.count do
    start, place = start + limit.period_us, place + 1
    at = start
  end
  return at
end

-- The same for a slot ahead of now, where the tasks of a window are spread over
-- it in proportion to what is taken: no herd when it opens.
function fixed_window.spread(state, limit, cost, from, now)
  local at = fixed_window.earliest(state, limit, cost, from)
  local start, place = window_of(state, limit, at)
  if start <= now then
    return at
  end
  return math.max(at, start + math.floor((state.taken[place] or 0) * limit.period_us / limit.count))
end

function fixed_window.take(state, limit, cost, at)
  local start, place = window_of(state, limit, at)
  if not state.start then
    state.start = start
  end
  add(state, place, cost)
  return start, 0
end

function fixed_window.passing(state, limit, cost, now)
  local _, place = window_of(state, limit, now)
  return math.floor((limit.count - (state.taken[place] or 0)) / cost)
end

-- A start after the end of its window would count in the next one.
function fixed_window.use_by(state, limit, at)
  return window_of(state, limit, at) + limit.period_us
end

-- How far ahead a slot may lie.
function fixed_window.horizon(state, limit, now)
  return window_of(state, limit, now) + MAX_AHEAD * limit.period_us
end

function fixed_window.status(state, limit, now)
  if not state.start then
    return limit.count, 0
  end
  local start, place = window_of(state, limit, now)
  return math.max(0, limit.count - (state.taken[place] or 0)), start + #state.taken * limit.period_us - now
end

-- When so many more tokens may have started, besides those that are to be left over in each
-- window: those of a window evenly over it.
function fixed_window.due(state, limit, n, keep, now)
  local start, place = window_of(state, limit, now)
  if not state.start then
    place = 1
  end
  local most = limit.count - keep
  while place <= #state.taken and n > most - state.taken[place] do
    n, start, place = n - math.max(0, most - state.taken[place]), start + limit.period_us, place + 1
  end
  local windows = place > #state.taken and math.floor((n - 1) / most) or 0
  local before = (state.taken[place] or 0) + n - windows * most - 1
  return math.max(now, start + windows * limit.period_us + math.floor(before * limit.period_us / limit.count))
end

function fixed_window.store(state, limit, now)
  if not state.start then
    return '', 0
  end
  local taken = table.concat(state.taken, ',')
  return int(state.start) .. ':' .. taken,
    ttl_ms(state.start + #state.taken * limit.period_us - now)
end

function fixed_window.give_back(state, limit, cost, _, _, start)
  if cost == 0 or not state.start or start < state.start then
    return false
  end
  local place = math.floor((start - state.start) / limit.period_us) + 1
  local taken = state.taken[place]
  if not taken or taken < cost then
    return false
  end
  state.taken[place] = taken - cost
  return true
end

-- What a start cost counts in the window it was in; once that has ended, it is
-- history.
function fixed_window.adjust(state, limit, more, _, _, start)
  if not state.start or start < state.start then
    return false
  end
  local place = math.floor((start - state.start) / limit.period_us) + 1
  if not state.taken[place] then
    return false
  end
  state.taken[place] = math.max(0, state.taken[place] + more)
  return true
end
