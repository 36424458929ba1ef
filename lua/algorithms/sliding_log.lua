-- sliding_log: at most `count` tokens in every half-open interval of `period_us`,
-- exactly. It remembers each start, and who it was.
--
-- A slot ahead is a start whose time has not come. It counts like any other, so a
-- request that would pass now may have to wait because of the slots after it.
--
-- A start that may wait keeps a little more than a period from those before and after
-- it, for who wakes for a slot may start late, and the next one may not: MARGIN of the
-- period, and no more than a start may be late at all.
--
-- Starts are facts: other numbers count those that are remembered as they are. The
-- slot is the first instant that passes, also ahead of now: a log has no reset at
-- which all would begin at once, since each token comes back a period after it
-- went.
--
-- State: a sorted set with a member for each token, at the instant of its start, so
-- that ranks count tokens:
--   "<slot_us>/<number>.<who>"    the first token of a start; no two starts of a key
--                                 have one number
--   "<slot_us>/<number>-<label>"  its other tokens, labelled 2, 3 and so on. The last
--                                 is labelled with the cost, which may be more: a
--                                 start has no more tokens than the limit, for more
--                                 could close nothing else.
-- and after all instants:
--   "closed/<from_us>/<till_us>/<cost>/<count>/<period_us>"
--                                 optional: a request of that cost or more passes at
--                                 no instant from `from` to before `till`
--   "number"                      last of all, at AFTER_ALL + 2 x the last number
--                                 given
-- What is older than a period, and than a clock may be set back, is forgotten by later
-- changes, MOST_FORGOTTEN at a time; until then no rank is counted from it.
local sliding_log = {}

-- After all instants that a double holds exactly.
local AFTER_ALL = 9007199254740992

-- By how much a clock may be set back, as when a replica takes over, and all starts
-- that count by then are still known; no more than a period.
local MOST_SET_BACK_US = 1000000

-- What starts that may wait keep from others beyond a period, as a share of it, and at most.
local MARGIN, MOST_MARGIN_US = 1 / 100, 20000

-- How many tokens one change forgets, and those of the same instant as the last.
local MOST_FORGOTTEN = 128

-- From how many steps on a search is worth remembering.
local LONG_SEARCH = 8

-- How many members one command gets; Lua can not unpack many more.
local MOST_MEMBERS = 2000

local function parse_closed(member, limit)
  local from, till, cost, count, period_us = string.match(member, '^closed/(%d+)/(%d+)/(%d+)/(%d+)/(%d+)$')
  if tonumber(count) == limit.count and tonumber(period_us) == limit.period_us then
    return { from = tonumber(from), till = tonumber(till), cost = tonumber(cost) }
  end
end

-- What of the key is read at once: its last token, and what stands after all. The
-- rest is looked up as it is needed. What this call takes stands in `runs` until
-- save: the tokens of an instant each, in order.
function sliding_log.load(raw, limit, _, key)
  local state = { key = key, number = 0, total = 0, counted = {}, runs = {}, added = {}, removed = {} }
  local top = not raw and redis.pcall('ZREVRANGE', key, 0, 2, 'WITHSCORES')
  if not top or top.err or top[1] and top[1] ~= 'number' then
    state.is_foreign = true
    return state
  end
  local others = 0
  for i = 1, #top, 2 do
    local member, score = top[i], tonumber(top[i + 1])
    if member == 'number' then
      state.number, others = (score - AFTER_ALL) / 2, others + 1
    elseif string.sub(member, 1, 6) == 'closed' then
      state.closed_member, state.closed, others = member, parse_closed(member, limit), others + 1
    else
      state.last = score
      state.total = redis.call('ZCARD', key) - others
      break
    end
  end
  return state
end

-- How many stored tokens are before an instant.
local function stored_before(state, at)
  if state.total == 0 or at > state.last then
    return state.total
  end
  if not state.counted[at] then
    state.counted[at] = redis.call('ZCOUNT', state.key, '-inf', '(' .. int(at))
  end
  return state.counted[at]
end

-- The last of the runs whose `field` is not above a value, or 0. Fields rise from
-- run to run.
local function last_run(runs, field, value)
  local low, high = 0, #runs
  while low < high do
    local middle = math.ceil((low + high) / 2)
    if runs[middle][field] <= value then
      low = middle
    else
      high = middle - 1
    end
  end
  return low
end

-- How many tokens are before an instant.
local function tokens_before(state, at)
  local run = state.runs[last_run(state.runs, 'at', at - 1)]
  return stored_before(state, at) + (run and run.taken or 0)
end

-- The instant of a token, by its place in time, from 0.
local function token_at(state, place)
  local run = state.runs[last_run(state.runs, 'place', place)]
  if run then
    if place < run.place + run.tokens then
      return run.at
    end
    place = place - run.taken
  end
  return tonumber(redis.call('ZRANGE', state.key, int(place), int(place), 'WITHSCORES')[2])
end

-- The instant of the last token, or nil.
local function last_token(state)
  local run = state.runs[#state.runs]
  return run and math.max(run.at, state.last or 0) or state.last
end

-- Keeps what a long search has found: nothing of that cost passes in between.
local function close(state, cost, from, till, now)
  local closed = state.closed
  if not closed or closed.till <= now or cost < closed.cost or cost == closed.cost and from < closed.from then
    state.closed = { from = from, till = till, cost = cost, is_new = true }
  elseif cost == closed.cost and from <= closed.till and till > closed.till then
    closed.till, closed.is_new = till, true
  end
end

-- The first instant, not before `from`, at which no interval would get too much.
--
-- One token more than there is room for, all within a period, fills every interval
-- that has the first and the last of them; an instant inside such an interval is
-- closed until a period after the first. So this looks for the latest token that
-- begins a full interval around `at`, goes where that ends, and looks again. A
-- token that begins none tells how far back the next candidate is.
local function first_passing(state, limit, period_us, cost, from)
  local room = limit.count - cost
  local closed, at = state.closed, from
  if closed and cost >= closed.cost and from >= closed.from and from < closed.till then
    at = closed.till
  end
  local steps, known, is_full = 0, 0, nil
  repeat
    is_full = false
    local first = math.max(known, tokens_before(state, at - period_us + 1))
    local place = tokens_before(state, at + period_us) - 1 - room
    known = place + 1
    while place >= first and not is_full do
      steps = steps + 1
      local begins = token_at(state, place)
      local candidate = tokens_before(state, begins + period_us) - 1 - room
      is_full = candidate >= place
      if is_full then
        at = begins + period_us
      end
      place = candidate
    end
  until not is_full
  return at, steps
end

function sliding_log.earliest(state, limit, cost, from, now)
  local at, steps = first_passing(state, limit, limit.period_us, cost, from)
  if steps >= LONG_SEARCH and at > from then
    close(state, cost, from, at, now)
  end
  return at
end

local function period_and_margin(limit)
  return limit.period_us + math.min(MOST_MARGIN_US, math.floor(limit.period_us * MARGIN))
end

sliding_log.keeps_margin = true

function sliding_log.spread(state, limit, cost, from)
  return (first_passing(state, limit, period_and_margin(limit), cost, from))
end

local function name_of(slot, number)
  return int(slot) .. '/' .. string.format('%06d', number)
end

-- Adds tokens to the run of an instant.
local function add_tokens(state, at, tokens)
  local runs = state.runs
  local i = last_run(runs, 'at', at)
  if i == 0 or runs[i].at < at then
    local taken = i > 0 and runs[i].taken or 0
    i = i + 1
    table.insert(runs, i, {
      at = at,
      place = stored_before(state, at + 1) + taken, -- of its first token
      tokens = 0,
      taken = taken, -- by this and all earlier runs
    })
  end
  runs[i].tokens = runs[i].tokens + tokens
  runs[i].taken = runs[i].taken + tokens
  for later = i + 1, #runs do
    runs[later].place = runs[later].place + tokens
    runs[later].taken = runs[later].taken + tokens
  end
end

-- Lists the tokens of a start from the one at `place` on, of as many as it has.
local function list_tokens(list, name, place, tokens, cost)
  for label = place, tokens - 1 do
    list[#list + 1] = name .. '-' .. string.format('%09d', label)
  end
  if tokens > 1 then
    list[#list + 1] = name .. '-' .. string.format('%09d', cost)
  end
end

-- The tokens of a new start.
local function start_tokens(limit, name, who, cost)
  local list = { name .. '.' .. who }
  list_tokens(list, name, 2, math.min(cost, math.max(2, limit.count)), cost)
  return list
end

function sliding_log.take(state, limit, cost, at, _, who)
  add_tokens(state, at, cost)
  state.number = state.number + 1
  local members = start_tokens(limit, name_of(at, state.number), who, cost)
  state.added[#state.added + 1] = { at = at, members = members }
  return state.number, 0
end

-- How many tokens nobody has who is less than that from now.
local function left_within(state, limit, period_us, now)
  return limit.count - tokens_before(state, now + period_us) + tokens_before(state, now - period_us + 1)
end

function sliding_log.passing(state, limit, cost, now)
  return math.floor(left_within(state, limit, period_and_margin(limit), now) / cost)
end

function sliding_log.take_each(state, limit, cost, requests, at, now, who)
  for _ = 1, requests do
    sliding_log.take(state, limit, cost, at, now, who)
  end
  return state.number, 0
end

-- What remains is what can not be refused now: slots ahead count if an interval
-- has both them and now.
function sliding_log.status(state, limit, now)
  local last = last_token(state)
  local reset_us = last and math.max(0, last + limit.period_us - now) or 0
  if reset_us == 0 then
    return limit.count, 0
  end
  return math.max(0, left_within(state, limit, limit.period_us, now)), reset_us
end

local function remove(key, members)
  for first = 1, #members, MOST_MEMBERS do
    redis.call('ZREM', key, unpack(members, first, math.min(first + MOST_MEMBERS - 1, #members)))
  end
end

local function add(key, starts, number)
  local arguments = { int(AFTER_ALL + 2 * number), 'number' }
  for _, start in ipairs(starts) do
    local score = int(start.at)
    for _, member in ipairs(start.members) do
      arguments[#arguments + 1], arguments[#arguments + 2] = score, member
      if #arguments >= 2 * MOST_MEMBERS then
        redis.call('ZADD', key, unpack(arguments))
        arguments = {}
      end
    end
  end
  if #arguments > 0 then
    redis.call('ZADD', key, unpack(arguments))
  end
end

-- How long a start is remembered.
local function memory_us(limit)
  return limit.period_us + math.min(limit.period_us, MOST_SET_BACK_US)
end

-- Forgets what is old, or the oldest of it; tells whether there was any.
local function forget_old(state, limit, now)
  local old = now - memory_us(limit)
  if stored_before(state, old + 1) == 0 then
    return false
  end
  local last = redis.call('ZRANGE', state.key, MOST_FORGOTTEN - 1, MOST_FORGOTTEN - 1, 'WITHSCORES')[2]
  if last and tonumber(last) < old then
    old = tonumber(last)
  end
  redis.call('ZREMRANGEBYSCORE', state.key, '-inf', int(old))
  return true
end

-- Keeps what is known to be closed. What was forgotten closed nothing from now on,
-- but a clock set far back could come to where it did.
local function save_closed(state, limit, now, has_forgotten)
  local closed = state.closed
  if closed and (closed.is_new or has_forgotten) then
    closed.from = math.max(closed.from, now)
    closed.is_new = true
  end
  if state.closed_member and (not closed or closed.is_new) then
    redis.call('ZREM', state.key, state.closed_member)
  end
  if closed and closed.is_new and closed.till > closed.from then
    local numbers = { closed.from, closed.till, closed.cost, limit.count, limit.period_us }
    for i, number in ipairs(numbers) do
      numbers[i] = int(number)
    end
    redis.call('ZADD', state.key, int(AFTER_ALL), 'closed/' .. table.concat(numbers, '/'))
  end
end

-- The key lives as long as the last start that it had when this call began, even if
-- that is undone: its number is not to be given again.
function sliding_log.save(state, limit, now, key)
  local left_us = last_token(state) + memory_us(limit) - now
  if left_us <= 0 then
    redis.call('DEL', key)
    return
  end
  remove(key, state.removed)
  add(key, state.added, state.number)
  save_closed(state, limit, now, forget_old(state, limit, now))
  redis.call('PEXPIRE', key, int(ttl_ms(left_us)))
end
