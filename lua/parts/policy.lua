-- policy: the limits of a policy with their numbers, and for each request the state that
-- each limit has for the request's key.
--
-- Every operation on a policy is called with the same keys:
--   KEYS[1]      freeze key
--   KEYS[2..]    state keys: for each request, for each limit; an operation that
--                names their places may leave out what it has already, and have
--                other keys besides
-- and with arguments that begin with the number of limits and for each of them:
--   algorithm, numbers, count, period_us, capacity, option, extra, kept, value
-- and then the name of the operation.
-- Count, period_us, capacity, option and extra are up to the algorithm; numbers is one
-- text of them all, see below; kept is how many tokens are for urgent requests alone; and
-- value is explained in parts/line.lua. What comes behind is up to the operation.
--
-- Each algorithm is a function of the table `make` and is made only if a limit has it. It
-- is a table of functions. `limit` is one of the limits; a `state` is what load made of
-- the key for this call; times are in us:
--   prepare(limit)               optional: reckons what follows from the numbers
--   load(body, limit, now, key)  the state of a key; body is its value if it is a
--                                string, false if it is missing or no string. Who can
--                                not read it marks the state `is_foreign`; who keeps no
--                                string does so to a key of another type. Then nothing
--                                is written at all
--   convert(state, was, limit, now)
--                                for who counts by numbers: the state by those of limit
--                                that stands for a state by those of `was`
--   overdraw(state, limit, cost, at, now)
--                                optional: take, whether or not it passes; leaves no more
--                                debt than there was, or than that of an empty limit then
--   earliest(state, limit, cost, from, now, who)
--                                the first instant, not before `from`, at which
--                                a request of that cost passes
--   spread(state, limit, cost, from, now, who)
--                                the same for a slot ahead of now, where requests
--                                should not all begin at one instant
--   keeps_margin                 optional: true if spread is to be asked, too, for what
--                                passes now and may wait
--   take(state, limit, cost, at, now, who)
--                                takes the cost at that instant, which earliest or
--                                spread allowed; returns two integers, the receipt
--   passing(state, limit, cost, now)
--                                optional: how many requests of that cost, one after
--                                the other, surely pass now, and change what take
--                                and status return in even steps; or less
--   takes_each                   optional: true if several takes are not the same as one of
--                                what they cost together
--   use_by(state, limit, at)     optional: the instant before which a start at `at`
--                                must be
--   horizon(state, limit, now, cost, who)
--                                optional: the instant before which slots must lie
--   has(state, cost, now, who)   optional: whether `who` has that already, and so may
--                                have it again whatever is kept
--   expect(state, who)           optional: tells that `who` will be asked for, so that what
--                                is known of many is read at once
--   hand, stand, is_stood_for, let_go, renew
--                                optional, all or none: slots that are held until they are
--                                given back, and those who stand by for them; see
--                                algorithms/concurrency.lua
--   due(state, limit, n, keep, now, cost)
--                                the first instant by which n tokens may have started
--                                from now on, besides those that were taken, if `keep`
--                                tokens are to be left over; where a window opens at
--                                once, its tokens come evenly. math.huge where nobody
--                                can tell. Who starts last has that cost of them
--   status(state, limit, now)    remaining, and reset_after_us
--   store(state, limit, now)     the value to keep and its TTL in ms; a TTL of 0
--                                deletes the key
--   save(state, limit, now, key) instead of store, for what is kept in no string
--   give_back(state, limit, cost, slot, now, receipt_1, receipt_2, who)
--                                optional: takes back a take, and tells whether it did,
--                                where that is not to adjust it by what it cost
--   adjust(state, limit, more, slot, now, receipt_1, receipt_2, who)
--                                takes `more` tokens for a start that was, or
--                                gives them back if negative, and tells whether
--
-- Numbers. Two processes may have different numbers for one limit, as in every rolling
-- deploy. So a string state of an algorithm with `convert` has a view for each of them:
-- what was taken, as counted by those numbers. Who asks decides by the view of its own
-- numbers, and what it takes is counted in all of them. A view begins as what the latest
-- other one is converted to: the share that was used stays used. After that nothing is
-- converted any more, so no debt is lost and none is made. The view that was asked last
-- stays; another ends when nobody has asked by its numbers for one of its periods, and a
-- minute.
--
-- Receipts are those of the view of who took. What is given back changes that view, if
-- it is still there, and no other.
--
-- A take is counted in another view where it would have passed there, which may be later:
-- that makes the faster of two limits wait for what the burst of the slower one took. A
-- view that is slower than who takes could never catch up, so it is at most empty.
--
-- State: "<numbers>|<body>", where body is up to the algorithm; or, for more views,
--        "<numbers>|<body>|<asked_us>|<numbers>|..." and so on for each, the last that was asked first,
--        where asked_us is about when somebody last asked by these numbers.
-- Numbers are "<count>/<period>", the period in s or u, then if they matter "b<capacity>",
-- "x<extra>" and ":<option>"; the argument has the "|" behind it.
local MOST_VIEWS = 3
-- How long a view is kept at least after it was asked.
local VIEW_US = 60000000
-- In how many parts a take is counted in another view, at most.
local MOST_PARTS = 64

-- The limits, whether one of them keeps something for urgent requests, and the algorithms.
local limits, kept, algorithms = {}, false, {}
-- What next_text and next_number read, and how far they are.
local arguments, argument = ARGV, 1 + 9 * ARGV[1]
-- Set by operations that ask, by which views begin and are kept; and by those about what
-- was taken before, for which no view is to begin.
local asks, settles = false, false

local function next_text()
  argument = argument + 1
  return arguments[argument]
end

local function next_number()
  argument = argument + 1
  return arguments[argument] + 0
end

local function new_limit(algorithm, numbers, count, period_us, capacity, option, extra, kept, value)
  local limit = {
    algorithm = algorithm, numbers = numbers, count = tonumber(count), period_us = tonumber(period_us),
    capacity = tonumber(capacity), option = option, extra = tonumber(extra),
    kept = tonumber(kept), keeps = kept + 0 > 0, value = tonumber(value),
  }
  if algorithm.prepare then
    algorithm.prepare(limit)
  end
  return limit
end

for i = 1, ARGV[1] + 0 do
  local name = ARGV[9 * i - 7]
  algorithms[name] = algorithms[name] or make[name]()
  limits[i] = new_limit(algorithms[name], unpack(ARGV, 9 * i - 6, 9 * i + 1))
  kept = kept or limits[i].keeps
end

-- The limit with other numbers, or nil if that is not what the text is.
local function limit_with(numbers, limit)
  local count, period, unit, burst, extra, option = string.match(numbers, '^(%d+)/(%d+)([su])b?(%d*)x?(%d*):?(%a*)$')
  return count and new_limit(limit.algorithm, numbers .. '|', count, period * (unit == 's' and 1000000 or 1),
    burst == '' and count or burst, option == '' and '-' or option, extra == '' and 0 or extra, limit.kept)
end

-- How long a view is kept that nobody asks.
local function view_us(limit)
  return math.max(VIEW_US, limit.period_us)
end

-- The state of a value that has several views, or one that is not the own: the own one,
-- with all that are kept; or with those of others, if it is absent.
local function load_views(value, limit)
  local algorithm, views, first, own = limit.algorithm, {}, nil, nil
  for numbers, body, asked in string.gmatch(value, '([^|]*)|([^|]*)|?([^|]*)|?') do
    local its = numbers .. '|' == limit.numbers and limit or limit_with(numbers, limit)
    local view = { limit = its, body = body, asked_us = tonumber(asked) or now }
    view.state = its and algorithm.load(body ~= '' and body, its, now)
    if not view.state or view.state.is_foreign then
      first = nil
      break
    end
    if not first or view.asked_us + view_us(its) > now then
      first, own = first or view, its == limit and view or own
      table.insert(views, view == own and asks and 1 or #views + 1, view)
    end
  end
  if not first or settles and not own then
    local state = algorithm.load(false, limit, now)
    state.is_foreign, state.is_absent, state.views = not first, true, views
    return state
  elseif not own then
    own = { limit = limit, state = algorithm.convert(first.state, first.limit, limit, now), asked_us = now }
    own.state.is_asked = asks
    table.insert(views, 1, own)
  end
  if asks and #views > 1 and (first ~= own or now - own.asked_us > view_us(limit) / 8) then
    own.asked_us, own.state.is_asked = now, true
  end
  own.state.views = views
  return own.state
end

local function load_state(value, limit, key)
  local algorithm, numbers = limit.algorithm, limit.numbers
  if not value or not algorithm.convert then
    return algorithm.load(value, limit, now, key)
  elseif string.sub(value, 1, #numbers) == numbers and not string.find(value, '|', #numbers + 1, true) then
    return algorithm.load(string.sub(value, #numbers + 1), limit, now, key)
  end
  return load_views(value, limit)
end

-- Requests that share a key share its state, so that they are decided as if one
-- by one.
local states = {}

local function state_at(place, i)
  if not states[place] then
    states[place] = load_state(raw[place], limits[i], KEYS[place])
    states[place].limit, states[place].is_new = limits[i], not raw[place]
  end
  return states[place]
end

-- Tells the states of a request's keys that its task will be asked for; behind each of their
-- places in ARGV are so many other arguments.
local function expect(who, others)
  for i = 1, #limits do
    local state, algorithm = state_at(next_number(), i), limits[i].algorithm
    if algorithm.expect then
      algorithm.expect(state, who)
    end
    argument = argument + others
  end
end

-- The states of a request's keys, one for each limit, where the keys come request
-- by request.
local function states_of(request)
  local own = {}
  for i = 1, #limits do
    own[i] = state_at(1 + (request - 1) * #limits + i, i)
  end
  return own
end

-- Counts what was taken by a limit's numbers in the views of others.
local function count_in_others(state, limit, cost, at)
  local algorithm = limit.algorithm
  for _, view in ipairs(state.views) do
    local other, its = view.limit, view.state
    if its ~= state and other.count * limit.period_us < limit.count * other.period_us then
      local take = algorithm.overdraw or algorithm.take
      take(its, other, cost, math.max(now, at), now)
    elseif its ~= state then
      local from, rest, most = at, cost, algorithm.overdraw and cost or other.capacity
      for _ = 1, math.min(MOST_PARTS, math.ceil(cost / most)) do
        local part = math.min(rest, most)
        from = algorithm.earliest(its, other, math.min(part, other.capacity), from, now)
        if algorithm.horizon and from >= algorithm.horizon(its, other, now) then
          break
        end
        algorithm.take(its, other, part, from, now)
        rest = rest - part
      end
    end
  end
end

-- The first instant, not before `from`, at which all limits pass, by each
-- algorithm's `method` (earliest or spread); and which limit came last to it.
-- A limit only ever moves the instant later, so this ends when none does.
-- A slot ahead of another instant than now is looked for from `since`.
local function first_instant(own, costs, from, method, who, since)
  local at, held_by = from, 0
  repeat
    local before = at
    for i = 1, #limits do
      local limit, algorithm = limits[i], limits[i].algorithm
      local from_us = algorithm.spread == algorithm.earliest and now or since or now
      local earliest = algorithm[method](own[i], limit, costs[i], at, from_us, who)
      if earliest > at then
        at, held_by = earliest, i
      end
    end
  until at == before or #limits == 1
  return at, held_by
end

-- Whether the next request is urgent, which is told where something is kept.
local function next_urgent()
  return kept and next_number() == 1
end

-- What a request of these costs must find: what is kept for urgent ones has to be left
-- over by others.
local function asked_for(costs, own, urgent, who)
  if not kept or urgent then
    return costs
  end
  local asked = {}
  for i = 1, #limits do
    local has = limits[i].algorithm.has
    asked[i] = costs[i] + (has and has(own[i], costs[i], now, who) and 0 or limits[i].kept)
  end
  return asked
end

-- Appends remaining and reset_after_us of every limit to a reply that has n
-- numbers, and tells how many it has then.
local function report(reply, n, own)
  for i = 1, #limits do
    local limit = limits[i]
    reply[n + 1], reply[n + 2] = limit.algorithm.status(own[i], limit, now)
    n = n + 2
  end
  return n
end

-- Returns an error if a key is not ours: what load could not read (is_foreign) was
-- left by another algorithm, and a key of another type that is about to be written
-- (or looked at: `peeking`) is somebody else's.
local function refuse(peeking)
  for place, state in pairs(states) do
    local unlike = (state.changed or peeking) and state.is_new and not state.limit.algorithm.save
    if state.is_foreign or unlike and redis.call('EXISTS', KEYS[place]) == 1 then
      return redis.error_reply('RAMPMETER key ' .. KEYS[place]
        .. ' holds something else than the state of its limit; remove it, or rename the limit')
    end
  end
end

-- The value of a state with all its views, and its TTL in ms. Where somebody only asked, views
-- stay as they were read, with what has passed: if the clock is set back, a later decision
-- must see no trace of a denial.
local function store_views(state, limit)
  local algorithm = limit.algorithm
  local views, texts, ttl = state.views or { { state = state, limit = limit } }, {}, 0
  for i = 1, math.min(#views, MOST_VIEWS) do
    local view = views[i]
    local body, its_ttl = algorithm.store(view.state, view.limit, now)
    if #views == 1 then
      return (algorithm.convert and view.limit.numbers or '') .. body, its_ttl
    end
    body = not state.changed and view.body or its_ttl > 0 and body or ''
    texts[i] = view.limit.numbers .. body .. '|' .. int(view.asked_us)
    ttl = math.max(ttl, its_ttl, ttl_ms(view.asked_us + view_us(view.limit) - now))
  end
  return table.concat(texts, '|'), ttl
end

-- Writes every state that was marked changed, and every one whose views are to tell who asked
-- (is_asked), each key once; or nothing at all, and returns an error, if one of them is not
-- ours.
local function save()
  local refused = refuse()
  if refused then
    return refused
  end
  for place, state in pairs(states) do
    local key, limit = KEYS[place], state.limit
    if state.changed and limit.algorithm.save then
      limit.algorithm.save(state, limit, now, key)
    elseif state.changed or state.is_asked then
      local value, ttl = store_views(state, limit)
      if ttl > 0 then
        redis.call('SET', key, value, 'PX', int(ttl))
      else
        redis.call('DEL', key)
      end
    end
  end
end
