-- fixed_window: `count` tokens in each window of `period_us`. Windows begin at
-- multiples of the period since the epoch (anchor clock), or with the first
-- request after the last window ended (anchor first).
--
-- Windows ahead of now are kept too, because a waiting task has its slot there;
-- at most MAX_AHEAD of them.
--
-- State: "<start_us of the first window kept>/<period_us>/<count>:<taken>,<taken>,...",
--        with the numbers it was counted by.
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

-- Other numbers than those the state was written with: the share that was used of
-- the open window is used of the new window of now, and slots ahead count in the
-- new windows that they lie in.
local function rescale(state, limit, now, was_period_us, was_count)
  local start, taken = state.start, state.taken
  state.start, state.taken, state.changed = nil, {}, true
  for i = 1, math.min(#taken, MAX_AHEAD) do
    if taken[i] > 0 then
      local at = math.max(now, start + (i - 1) * was_period_us)
      local tokens = taken[i]
      if i == 1 then
        tokens = math.ceil(tokens * limit.count / was_count)
      end
      local begins, place = window_of(state, limit, at)
      state.start = state.start or begins
      if place <= MAX_AHEAD then
        for fill = #state.taken + 1, place do
          state.taken[fill] = 0
        end
        state.taken[place] = state.taken[place] + tokens
      end
    end
  end
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

function fixed_window.load(raw, limit, now)
  local state = { taken = {} }
  if raw then
    local start, period_us, count, taken = string.match(raw, '^(%d+)/(%d+)/(%d+):([%d,]+)$')
    if not start then
      return { taken = {}, is_foreign = true }
    end
    state.start, period_us, count = tonumber(start), tonumber(period_us), tonumber(count)
    state.taken[1] = tonumber(taken) -- mostly there is one window
    for tokens in string.gmatch(state.taken[1] and '' or taken, '%d+') do
      state.taken[#state.taken + 1] = tonumber(tokens)
    end
    forget(state, period_us, now)
    if state.start and (period_us ~= limit.period_us or count ~= limit.count) then
      rescale(state, limit, now, period_us, count)
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
  for i = #state.taken + 1, place do
    state.taken[i] = 0
  end
  state.taken[place] = state.taken[place] + cost
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

function fixed_window.store(state, limit, now)
  if not state.start then
    return '', 0
  end
  local taken = table.concat(state.taken, ',')
  return string.format('%d/%d/%d:%s', state.start, limit.period_us, limit.count, taken),
    ttl_ms(state.start + #state.taken * limit.period_us - now)
end
