-- A policy: its limits with their numbers, and for each request the state that
-- each limit has for the request's key.
--
-- Every operation on a policy is called with the same head:
--   KEYS[1]      freeze key
--   KEYS[2..]    for each request, for each limit: its state key
--   ARGV[1]      number of limits
--   ARGV[2..]    for each limit: algorithm, count, period_us, capacity, option,
--                extra (what option and extra are is up to the algorithm)
-- and then what the operation says for each request.
--
-- An algorithm is a table of functions. `limit` is a limit of the head; a
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
--   take(state, limit, cost, at, now, who)
--                                takes the cost at that instant, which earliest or
--                                spread allowed; returns two integers, the receipt
--   give_back(state, limit, cost, slot, now, receipt_1, receipt_2, who)
--                                takes back a take, and tells whether it did
--   adjust(state, limit, more, slot, now, receipt_1, receipt_2, who)
--                                takes `more` tokens for a start that was, or
--                                gives them back if negative, and tells whether
--   use_by(state, limit, at)     the instant before which a start at `at` must be,
--                                or nil
--   horizon(state, limit, now, cost, who)
--                                optional: the instant before which slots must lie
--   status(state, limit, now)    remaining, and reset_after_us
--   store(state, limit, now)     the value to keep and its TTL in ms; a TTL of 0
--                                deletes the key
--   save(state, limit, now, key) instead of store, for what is kept in no string
local now = now_us()
local limits = {}
local argument = 1

local function next_text()
  argument = argument + 1
  return ARGV[argument]
end

local function next_number()
  return tonumber(next_text())
end

for i = 1, tonumber(ARGV[1]) do
  local limit = { algorithm = algorithms[next_text()] }
  limit.count = next_number()
  limit.period_us = next_number()
  limit.capacity = next_number()
  limit.option = next_text()
  limit.extra = next_number()
  limits[i] = limit
end

local request_count = (#KEYS - 1) / #limits

-- One read for all keys. MGET answers nil for a key of another type, too; save()
-- looks twice before it writes to a key that seemed to be missing.
local raw = redis.call('MGET', unpack(KEYS))
local frozen_until = tonumber(raw[1] or 0)

-- Requests that share a key share its state, so that they are decided as if one
-- by one.
local states = {}

local function state_of(request, i)
  local at = 1 + (request - 1) * #limits + i
  local key = KEYS[at]
  local state = states[key]
  if not state then
    state = limits[i].algorithm.load(raw[at], limits[i], now, key)
    state.limit, state.is_new = limits[i], not raw[at]
    states[key] = state
  end
  return state
end

-- The first instant, not before `from`, at which all limits pass, by each
-- algorithm's `method` (earliest or spread); and which limit came last to it.
-- A limit only ever moves the instant later, so this ends when none does.
local function first_instant(request, costs, from, method, who)
  local at, held_by = from, 0
  local moved
  repeat
    moved = false
    for i, limit in ipairs(limits) do
      local earliest = limit.algorithm[method](state_of(request, i), limit, costs[i], at, now, who)
      if earliest > at then
        at, held_by, moved = earliest, i, true
      end
    end
  until not moved or #limits == 1
  return at, held_by
end

local function next_costs()
  local costs = {}
  for i = 1, #limits do
    costs[i] = next_number()
  end
  return costs
end

-- Appends remaining and reset_after_us of every limit to a reply.
local function report(reply, request)
  for i, limit in ipairs(limits) do
    reply[#reply + 1], reply[#reply + 2] = limit.algorithm.status(state_of(request, i), limit, now)
  end
end

-- Writes every state that was marked changed, each key once. A key of another
-- type is somebody else's: then nothing is written at all.
local function save()
  for key, state in pairs(states) do
    local unlike = state.changed and state.is_new and not state.limit.algorithm.save
    if state.is_foreign or unlike and redis.call('EXISTS', key) == 1 then
      return redis.error_reply('RAMPMETER key ' .. key .. ' holds something that is not a limit')
    end
  end
  for key, state in pairs(states) do
    if state.changed then
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
