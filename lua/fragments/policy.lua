-- A policy: its limits with their numbers, and for each request the state that
-- each limit has for the request's key.
--
-- Every operation on a policy is called with the same keys:
--   KEYS[1]      freeze key
--   KEYS[2..]    state keys: for each request, for each limit; an operation that
--                names their places may leave out what it has already, and have
--                other keys besides
-- and the arguments that the operation says for each request. Before this text
-- stands the table `limits`; each has its algorithm, count, period_us, capacity,
-- option and extra, which are up to the algorithm, and value (see fragments/line.lua);
-- and `kept`: what each limit keeps for urgent requests, or nil for nothing at all.
--
-- An algorithm is a table of functions. `limit` is one of the limits; a
-- `state` is what load made of the key for this call; times are in us:
--   load(raw, limit, now, key)   the state of a key; raw is its value if it is a
--                                string, false if it is missing or no string. A
--                                state written with other numbers is converted, and
--                                marked `changed`: the conversion must be kept even
--                                if nothing is taken, or time would not tell on it.
--                                Who keeps no string marks a key of another type
--                                `is_foreign`, and then nothing is written at all
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
--   take_each(state, limit, cost, requests, at, now, who)
--                                optional: as many takes of that cost, with the last
--                                one's receipt, where that is not the same as one take
--                                of what they cost together
--   use_by(state, limit, at)     optional: the instant before which a start at `at`
--                                must be
--   horizon(state, limit, now, cost, who)
--                                optional: the instant before which slots must lie
--   has(state, cost, now, who)   optional: whether `who` has that already, and so may
--                                have it again whatever is kept
--   supply(state, limit, till, now)
--                                optional: how many tokens may start from now until
--                                `till` besides those that are taken; or less, and never
--                                more than count
--   status(state, limit, now)    remaining, and reset_after_us
--   store(state, limit, now)     the value to keep and its TTL in ms; a TTL of 0
--                                deletes the key
--   save(state, limit, now, key) instead of store, for what is kept in no string
-- and for the operations that need them, here or in fragments/<algorithm>_back.lua:
--   give_back(state, limit, cost, slot, now, receipt_1, receipt_2, who)
--                                takes back a take, and tells whether it did
--   adjust(state, limit, more, slot, now, receipt_1, receipt_2, who)
--                                takes `more` tokens for a start that was, or
--                                gives them back if negative, and tells whether
if kept then
  for i = 1, #limits do
    limits[i].keeps = kept[i] > 0
  end
end

local argument = 0

local function next_text()
  argument = argument + 1
  return ARGV[argument]
end

local function next_number()
  argument = argument + 1
  return ARGV[argument] + 0
end

-- Requests that share a key share its state, so that they are decided as if one
-- by one.
local states = {}

local function state_at(place, i)
  local state = states[place]
  if not state then
    local limit = limits[i]
    state = limit.algorithm.load(raw[place], limit, now, KEYS[place])
    state.limit, state.is_new = limit, not raw[place]
    states[place] = state
  end
  return state
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

-- The first instant, not before `from`, at which all limits pass, by each
-- algorithm's `method` (earliest or spread); and which limit came last to it.
-- A limit only ever moves the instant later, so this ends when none does.
local function first_instant(own, costs, from, method, who)
  local at, held_by = from, 0
  repeat
    local before = at
    for i = 1, #limits do
      local limit = limits[i]
      local earliest = limit.algorithm[method](own[i], limit, costs[i], at, now, who)
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
    asked[i] = costs[i] + (has and has(own[i], costs[i], now, who) and 0 or kept[i])
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

-- Writes every state that was marked changed, each key once; or nothing at all,
-- and returns an error, if one of them is not ours.
local function save()
  local refused = refuse()
  if refused then
    return refused
  end
  for place, state in pairs(states) do
    if state.changed then
      local key = KEYS[place]
      local algorithm = state.limit.algorithm
      if algorithm.save then
        algorithm.save(state, state.limit, now, key)
      else
        local value, ttl = algorithm.store(state, state.limit, now)
        if ttl > 0 then
          redis.call('SET', key, value, 'PX', int(ttl))
        else
          redis.call('DEL', key)
        end
      end
    end
  end
end
