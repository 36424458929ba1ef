-- sliding_log: at most `count` tokens in every half-open interval of `period_us`,
-- exactly. It remembers each start, what it cost, and who it was.
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
-- State: a sorted set whose members are in the order of their names, too, so that ranges
-- of names can be counted:
--   "a<slot_us>/<number>"  a start of which the tokens beyond the first, as a binary
--                          number, have the digit 1; "b": the digit 2, "c": the digit 4,
--                          and so on. So the tokens before an instant are counted by one
--                          command for each digit, however many there are. Scores are 0
--   "s<slot_us>/<number>/<cost>.<who>"
--                          a start, by its instant; no two starts of a key have one number
--   "~<longest_us>/<asked_us>", and maybe "/<from_us>/<till_us>/<cost>/<count>/<period_us>"
--                          last of all, at AFTER_ALL + 2 x (16 x the last number given +
--                          how many digits are in use): the longest period by which
--                          somebody counts, and about when somebody last asked by it beside
--                          a shorter one, 0 if there is none; and what a long search has
--                          found: a request of that cost or more passes at no instant from
--                          `from` to before `till`
-- What is older than the longest period, and than a clock may be set back, is forgotten by
-- later changes, MOST_FORGOTTEN starts at a time.
local sliding_log = { keeps_margin = true, takes_each = true }

-- After all instants that a double holds exactly.
local AFTER_ALL = 9007199254740992

-- By how much a clock may be set back, as when a replica takes over, and all starts
-- that count by then are still known; no more than a period.
local MOST_SET_BACK_US = 1000000

-- What starts that may wait keep from others beyond a period, as a share of it, and at most.
local MARGIN, MOST_MARGIN_US = 1 / 100, 20000

-- How many starts one call forgets, which is as many as one adds, and those of the same
-- instant as the last.
local MOST_FORGOTTEN = 1024

-- No limit has more tokens, so more could close nothing else.
local MOST_TOKENS = 10000

-- From how many steps on a search is long, and worth remembering. All long searches of
-- a call together have so many more steps; after that they give up, and go where the last
-- full interval ends, past gaps that may lie before.
local LONG_SEARCH, MOST_LONG_STEPS = 4, 3000
local long_steps = 0

-- How many arguments one command gets; Lua can not unpack many more.
local MOST_ARGUMENTS = 4000

-- Instants and starts, as members have them.
local AT, NAME = '%016d', '%016d/%06d'

-- How members begin that tell of a digit.
local KINDS = { 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l', 'm', 'n' }

-- What of the key is read at once: what stands last, and the last start. The rest is
-- looked up as it is needed. What this call takes stands in `runs` until save: at which
-- instants, in order; what it costs there; and behind how many tokens of all that ends.
function sliding_log.load(raw, limit, _, key)
  local state = { key = key, number = 0, digits = 0, last = 0, latest = 0, tokens = { 0 }, starts = { 0 },
    longest_us = limit.period_us, asked_us = 0,
    slots = {}, runs = {}, added = {}, removed = {}, closed = { from = 0, till = 0, cost = math.huge },
    apart_us = limit.period_us + math.min(MOST_MARGIN_US, math.floor(limit.period_us * MARGIN)) }
  local top = not raw and redis.pcall('ZREVRANGE', key, 0, 1, 'WITHSCORES')
  if not top or top.err or top[1] and string.sub(top[1], 1, 1) ~= '~' then
    state.is_foreign = true
  elseif top[1] then
    state.header, state.number, state.digits = top[1], math.floor((top[2] - AFTER_ALL) / 32), top[2] % 32 / 2
    state.last = tonumber(top[3] and string.match(top[3], '^s(%d+)') or 0)
    state.latest = state.last
    local numbers = {}
    for number in string.gmatch(top[1], '%d+') do
      numbers[#numbers + 1] = tonumber(number)
    end
    state.longest_us, state.asked_us = numbers[1], numbers[2]
    if numbers[6] == limit.count and numbers[7] == limit.period_us then
      state.closed = { from = numbers[3], till = numbers[4], cost = numbers[5] }
    end
  end
  return state
end

-- How many stored tokens are before an instant, and how many starts.
local function stored_before(state, at)
  at = math.min(at, state.last + 1)
  if not state.tokens[at] then
    local starts = redis.call('ZCOUNT', state.key, '(0', '(' .. int(at))
    state.tokens[at], state.starts[at] = starts, starts
    for digit = 1, state.digits do
      local more = redis.call('ZLEXCOUNT', state.key, '[' .. KINDS[digit], '(' .. KINDS[digit] .. string.format(AT, at))
      state.tokens[at] = state.tokens[at] + 2 ^ (digit - 1) * more
    end
  end
  return state.tokens[at], state.starts[at]
end

-- How many of the runs come first whose `field` is not above a value, and how many
-- tokens they took. Fields rise from run to run.
local function first_runs(state, field, value)
  local low, high = 0, #state.runs
  while low < high do
    local middle = math.floor((low + high) / 2)
    local is_behind = state.runs[middle + 1][field] <= value
    low, high = is_behind and middle + 1 or low, is_behind and high or middle
  end
  local last = state.runs[low]
  return low, last and last.ends - stored_before(state, last.at + 1) or 0
end

-- How many tokens are before an instant.
local function tokens_before(state, at)
  local _, taken = first_runs(state, 'at', at - 1)
  return stored_before(state, at) + taken
end

-- The instant of a token, by its place in time, from 0. Of one instant, those come first
-- that were stored. A stored one is looked for among the starts that can have it: each
-- has one token, and all together have only so many more.
local function token_at(state, place)
  local i, taken = first_runs(state, 'ends', place)
  local run, stored = state.runs[i + 1], place - taken
  if run and run.ends - run.cost <= place then
    return run.at
  end
  local tokens, starts = stored_before(state, state.last + 1)
  local low, high = math.max(0, stored - tokens + starts), math.min(stored, starts - 1)
  while true do
    local middle = math.floor((low + high) / 2)
    local rank = int(starts - middle)
    local at = state.slots[rank] or tonumber(string.sub(redis.call('ZREVRANGE', state.key, rank, rank)[1], 2, 17))
    state.slots[rank] = at
    if low == high then
      return at
    elseif stored_before(state, at + 1) > stored then
      high = middle
    else
      low = middle + 1
    end
  end
end

-- The first instant, not before `from`, at which no interval would get too much.
--
-- One token more than there is room for, all within a period, fills every interval
-- that has the first and the last of them; an instant inside such an interval is
-- closed until a period after the first. So this looks for the latest token that
-- begins a full interval around `at`, goes where that ends, and looks again. A
-- token that begins none tells how far back the next candidate is.
--
-- What a long search has found is kept, unless what is known of a smaller cost is still of
-- use.
local function first_passing(state, limit, period_us, cost, from, now)
  local closed, steps, too_many = state.closed, 0, limit.count - cost + 1
  local at = cost >= closed.cost and from >= closed.from and math.max(from, closed.till) or from
  local place = tokens_before(state, at + period_us) - too_many
  while place >= tokens_before(state, at - period_us + 1) do
    if steps >= LONG_SEARCH and long_steps >= MOST_LONG_STEPS then
      return token_at(state, tokens_before(state, state.latest + 1) - too_many) + period_us
    end
    local ends = token_at(state, place) + period_us
    local candidate = tokens_before(state, ends) - too_many
    if candidate >= place then
      at, candidate = ends, tokens_before(state, ends + period_us) - too_many
    end
    place, steps = candidate, steps + 1
    long_steps = long_steps + (steps > LONG_SEARCH and 1 or 0)
  end
  if steps >= LONG_SEARCH and period_us == limit.period_us and (closed.till <= now or cost <= closed.cost) then
    state.closed = { from = from, till = at, cost = cost }
  end
  return at
end

-- Notes by which period somebody counts, even if denied: starts are remembered for the longest
-- one, until nobody has asked by it for twice as long, when nothing it counted counts any more.
local function note_period(state, limit, now)
  local period_us, longest_us, asked_us = limit.period_us, state.longest_us, state.asked_us
  if period_us > longest_us or asked_us > 0 and asked_us + 2 * longest_us < now then
    state.longest_us, state.asked_us, state.changed = period_us, 0, true
  elseif period_us < longest_us and asked_us == 0
    or period_us == longest_us and asked_us > 0 and now - asked_us > period_us / 8 then
    state.asked_us, state.changed = now, true
  end
end

function sliding_log.earliest(state, limit, cost, from, now)
  note_period(state, limit, now)
  return first_passing(state, limit, limit.period_us, cost, from, now)
end

function sliding_log.spread(state, limit, cost, from, now)
  return first_passing(state, limit, state.apart_us, cost, from, now)
end

-- Lists the members of a start.
local function list_members(state, list, name, cost, who)
  list[#list + 1] = cost > 0 and 's' .. name .. '/' .. int(cost) .. '.' .. who or nil
  local rest, digit = math.min(cost, MOST_TOKENS) - 1, 0
  while rest > 0 do
    digit = digit + 1
    list[#list + 1] = rest % 2 == 1 and KINDS[digit] .. name or nil
    rest = math.floor(rest / 2)
  end
  state.digits = math.max(state.digits, digit)
end

function sliding_log.take(state, _, cost, at, _, who)
  local first, taken = first_runs(state, 'at', at)
  table.insert(state.runs, first + 1, { at = at, cost = cost, ends = stored_before(state, at + 1) + taken + cost })
  for i = first + 2, #state.runs do
    state.runs[i].ends = state.runs[i].ends + cost
  end
  state.number, state.latest = state.number + 1, math.max(state.latest, at)
  list_members(state, state.added, string.format(NAME, at, state.number), cost, who)
  return state.number, 0
end

-- How many tokens nobody has who is less than that from now.
local function left_within(state, limit, period_us, now)
  return limit.count - tokens_before(state, now + period_us) + tokens_before(state, now - period_us + 1)
end

function sliding_log.passing(state, limit, cost, now)
  return math.floor(left_within(state, limit, state.apart_us, now) / cost)
end

-- What remains is what can not be refused now: slots ahead count if an interval
-- has both them and now.
function sliding_log.status(state, limit, now)
  return math.max(0, left_within(state, limit, limit.period_us, now)), math.max(0, state.latest + limit.period_us - now)
end

-- When so many more tokens may have started, besides those that are to be left over: a
-- period after as many as are too many by now; and what is more than all, so many periods
-- later.
function sliding_log.due(state, limit, n, keep, now)
  local periods = math.floor((n - 1) / (limit.count - keep))
  local over = tokens_before(state, now - limit.period_us + 1)
  local lacking = tokens_before(state, state.latest + 1) - over + n - periods * (limit.count - keep) + keep - limit.count
  return (lacking > 0 and token_at(state, over + lacking - 1) + limit.period_us or now) + periods * limit.period_us
end

-- What a start really cost counts at its own instant, even if that is too much; 0 or
-- less undoes it. One that was adjusted to nothing, or lost with Redis's data, comes
-- back. A script call changes one start of a key, and only looks at the key before that.
function sliding_log.adjust(state, limit, more, slot, now, number, _, who)
  local name = string.format(NAME, slot, number)
  local found = redis.call('ZRANGEBYLEX', state.key, '[s' .. name .. '/', '(s' .. name .. '0', 'LIMIT', 0, 1)
  local cost, whose = string.match(found[1] or '', '^s%d+/%d+/(%d+)%.(.*)$')
  local before = whose == who and tonumber(cost) or 0
  if before == 0 and (more < 0 or slot <= now - limit.period_us) then
    return false
  end
  list_members(state, state.removed, name, before, who)
  list_members(state, state.added, name, before + more, who)
  state.number, state.latest = math.max(state.number, number), math.max(state.latest, slot)
  state.closed.till = more < 0 and 0 or state.closed.till
  return true
end

-- A start that will not be is as if it had never been, wherever its slot is.
function sliding_log.give_back(state, limit, _, slot, now, number, _, who)
  return sliding_log.adjust(state, limit, -math.huge, slot, now, number, 0, who)
end

-- The key lives as long as the last start that it had when this call began, even if
-- that is undone: its number is not to be given again. Beside a shorter period it lives as
-- long as the longest one is kept, too, or else those who count by that would find forgotten
-- what others start meanwhile. What is forgotten closes nothing from now on, but a clock set
-- far back could come to where it did.
function sliding_log.save(state, limit, now, key)
  local memory_us, closed = state.longest_us + math.min(limit.period_us, MOST_SET_BACK_US), state.closed
  closed.from = math.max(closed.from, now)
  local header = string.format('~%d/%d', state.longest_us, state.asked_us)
  if closed.from < closed.till then
    header = header .. string.format('/%d/%d/%d/%d/%d', closed.from, closed.till, closed.cost, limit.count, limit.period_us)
  end
  state.removed[#state.removed + 1] = state.header ~= header and state.header or nil
  if #state.removed > 0 then
    redis.call('ZREM', key, unpack(state.removed))
  end
  local arguments = { int(AFTER_ALL + 2 * (16 * state.number + state.digits)), header }
  for i, member in ipairs(state.added) do
    arguments[2 * i + 1], arguments[2 * i + 2] = string.sub(member, 1, 1) == 's' and string.sub(member, 2, 17) or '0', member
  end
  for first = 1, #arguments, MOST_ARGUMENTS do
    redis.call('ZADD', key, unpack(arguments, first, math.min(first + MOST_ARGUMENTS - 1, #arguments)))
  end
  local matters = math.max(state.latest + memory_us, state.asked_us + 2 * state.longest_us)
  redis.call('PEXPIRE', key, int(ttl_ms(matters - now))) -- which removes it if that is no time
  if stored_before(state, now - state.longest_us + 1) > 0 then
    local ends = now - memory_us + 1
    local last = redis.call('ZRANGEBYSCORE', key, '(0', '(' .. int(ends), 'LIMIT', MOST_FORGOTTEN - 1, 1)[1]
    ends = last and string.sub(last, 2, 17) + 1 or ends
    redis.call('ZREMRANGEBYSCORE', key, '(0', '(' .. int(ends))
    for digit = 1, state.digits do
      redis.call('ZREMRANGEBYLEX', key, '[' .. KINDS[digit], '(' .. KINDS[digit] .. string.format(AT, ends))
    end
  end
end
