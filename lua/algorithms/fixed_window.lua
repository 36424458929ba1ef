-- fixed_window: `count` tokens in each window of `period_us`. Windows begin at
-- multiples of the period since the epoch (anchor clock), or with the first
-- request after the last window ended (anchor first).
--
-- Windows ahead of now are kept too, because a waiting task has its slot there;
-- at most MAX_AHEAD of them.
--
-- A state has the `start` of the first window kept, the instant at which the last one
-- `ends`, and what is `taken` of each, by where it begins.
--
-- Body: "<start_us of the first window kept>:<taken>,<taken>,...".
local fixed_window = {}

local MAX_AHEAD = 64

local function empty_state()
  return { ends = 0, taken = {} }
end

-- Where the window begins that `at` lies in.
local function window_of(state, limit, at)
  local first = state.start or limit.option == 'first' and at or 0
  return math.max(first, at - (at - first) % limit.period_us)
end

local function taken_in(state, start)
  return state.taken[start] or 0
end

-- Counts tokens in the window that begins at `start`, unless that is too far ahead.
local function add(state, limit, start, tokens, now)
  state.start = state.start or start
  if start < fixed_window.horizon(state, limit, now) then
    state.ends = math.max(state.ends, start + limit.period_us)
    state.taken[start] = taken_in(state, start) + tokens
  end
end

-- Windows that ended are forgotten.
function fixed_window.load(body, limit, now)
  local state = empty_state()
  local start, taken = string.match(body or '', '^(%d+):([%d,]+)$')
  state.is_foreign = body and not start
  start = tonumber(start)
  for tokens in string.gmatch(taken or '', '%d+') do
    if start + limit.period_us > now then
      add(state, limit, start, tonumber(tokens), now)
    end
    start = start + limit.period_us
  end
  return state
end

-- The share that was used of the open window is used of the new one, and the share of its
-- time that has passed has passed of it, unless windows begin by the clock. Slots ahead
-- count in the new windows that they lie in.
function fixed_window.convert(was, its, limit, now)
  local state, start = empty_state(), was.start
  if not start then
    return state
  elseif its.period_us == limit.period_us then
    state.start = start
  elseif limit.option == 'first' then
    state.start = now - math.floor(math.max(0, now - start) * limit.period_us / its.period_us)
  else
    state.start = window_of(state, limit, now)
  end
  local tokens = math.ceil(taken_in(was, start) * limit.count / its.count)
  while start < was.ends do
    add(state, limit, window_of(state, limit, math.max(now, start)), tokens, now)
    start = start + its.period_us
    tokens = taken_in(was, start)
  end
  return state
end

-- The first instant, not before `from`, whose window has room for `cost`.
function fixed_window.earliest(state, limit, cost, from)
  local start, at = window_of(state, limit, from), from
  while taken_in(state, start) + cost > limit.count do
    start = start + limit.period_us
    at = start
  end
  return at
end

-- The same for a slot ahead of now, where the tasks of a window are spread over
-- it in proportion to what is taken: no herd when it opens.
function fixed_window.spread(state, limit, cost, from, now)
  local at = fixed_window.earliest(state, limit, cost, from)
  local start = window_of(state, limit, at)
  if start <= now then
    return at
  end
  return math.max(at, start + math.floor(taken_in(state, start) * limit.period_us / limit.count))
end

-- The receipt is where the window begins.
function fixed_window.take(state, limit, cost, at, now)
  local start = window_of(state, limit, at)
  add(state, limit, start, cost, now)
  return start, 0
end

function fixed_window.passing(state, limit, cost, now)
  return math.floor((limit.count - taken_in(state, window_of(state, limit, now))) / cost)
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
  return math.max(0, limit.count - taken_in(state, window_of(state, limit, now))), math.max(0, state.ends - now)
end

-- When so many more tokens may have started, besides those that are to be left over in each
-- window: those of a window evenly over it.
function fixed_window.due(state, limit, n, keep, now)
  local start, most = window_of(state, limit, now), limit.count - keep
  while start < state.ends and n > most - taken_in(state, start) do
    n, start = n - math.max(0, most - taken_in(state, start)), start + limit.period_us
  end
  local before = taken_in(state, start) + n - 1
  local windows = start >= state.ends and math.floor(before / most) or 0
  return math.max(now, start + windows * limit.period_us + math.floor((before - windows * most) * limit.period_us / limit.count))
end

function fixed_window.store(state, limit, now)
  if not state.start then
    return '', 0
  end
  local taken = {}
  for start = state.start, state.ends - 1, limit.period_us do
    taken[#taken + 1] = int(taken_in(state, start))
  end
  return int(state.start) .. ':' .. table.concat(taken, ','), ttl_ms(state.ends - now)
end

-- What a start cost counts in the window it was in; once that has ended, it is
-- history. Of what others have taken nothing is given back.
function fixed_window.adjust(state, limit, more, _, _, receipt)
  local start = window_of(state, limit, receipt)
  local taken = start <= receipt and state.taken[start]
  if not taken or taken + more < 0 then
    return false
  end
  state.taken[start] = taken + more
  return true
end
