-- put_off: the slots of a token_bucket that another limit puts off, so that they come
-- later than the bucket alone had them. Their tokens must be there then, but others may
-- use until then what comes back before. So such a slot is no part of the TAT until its
-- time has come, or nothing passes before it any more. They are kept by their instants,
-- at most MAX_PUT_OFF of these, and beyond that the first of them is the TAT's. A limit
-- that keeps something has fragments/spare.lua instead.
put_off = {}

local MAX_PUT_OFF = 32

-- A copy of the TAT, as all slots leave it behind.
function put_off.last(state, limit)
  local line = { tat = state.tat, part = state.part }
  for _, slot in ipairs(state.put_off or {}) do
    start(line, limit, slot.cost, slot.at)
  end
  return line
end

-- How late the TAT may be before each slot that was put off, for it and those behind
-- it to find their tokens.
local function latest_tats(state, limit)
  local latest, next_one = {}, math.huge
  for i = #state.put_off, 1, -1 do
    local slot = state.put_off[i]
    local cost_us, part = worth(limit, slot.cost)
    next_one = min(slot.at + (worth(limit, limit.capacity - slot.cost)), max(slot.at, next_one - cost_us - min(part, 1)))
    latest[i] = next_one
  end
  return latest
end

-- The time from a TAT, or now, until another instant.
local function room_until(state, latest, now)
  return latest - max(now, state.tat + min(state.part, 1))
end

-- The first instant, not before `from`, at which a cost passes between the slots that
-- were put off, and leaves them theirs.
function put_off.earliest(state, limit, cost, from)
  local line, latest, at = { tat = state.tat, part = state.part }, latest_tats(state, limit), from
  local cost_us, part = worth(limit, cost)
  for i, slot in ipairs(state.put_off) do
    at = max(at, by_tat(line, limit, cost))
    if at < slot.at and room_until(line, latest[i], at) >= cost_us + min(part, 1) then
      return at
    end
    start(line, limit, slot.cost, slot.at)
    at = max(at, slot.at)
  end
  return max(at, by_tat(line, limit, cost))
end

-- The place of an instant among the slots that were put off, or that of the next.
local function place_of(slots, at)
  local place = 1
  while slots[place] and slots[place].at < at do
    place = place + 1
  end
  return place, slots[place] and slots[place].at == at
end

local function insert(state, limit, cost, at, now)
  local slots = state.put_off or {}
  state.put_off = slots
  local place, is_there = place_of(slots, at)
  if is_there then
    slots[place].cost = slots[place].cost + cost
  else
    table.insert(slots, place, { at = at, cost = cost })
    if #slots > MAX_PUT_OFF then
      settle(state, limit, now)
    end
  end
end

-- Settles the slots before which nothing passes any more.
function put_off.settle(state, limit, now)
  local token_us = limit.token_us + min(limit.token_parts, 1)
  while state.put_off and room_until(state, latest_tats(state, limit)[1], now) < token_us do
    settle(state, limit, now)
  end
end

function put_off.take(state, limit, cost, at, now)
  insert(state, limit, cost, at, now)
  put_off.settle(state, limit, now)
end

-- Changes the cost of a slot that was put off, and tells whether it still is.
function put_off.recount(state, slot, more)
  local slots = state.put_off or {}
  local place, is_there = place_of(slots, slot)
  if not is_there then
    return false
  end
  slots[place].cost = slots[place].cost + more
  if slots[place].cost <= 0 then
    table.remove(slots, place)
    state.put_off = #slots > 0 and slots or nil
  end
  return true
end

-- What may be taken now, and when the bucket is full again.
function put_off.status(state, limit, now)
  local last = put_off.last(state, limit)
  local room_us = room_until(state, min(now + limit.full_us, latest_tats(state, limit)[1]), now)
  return max(0, min(limit.capacity, tokens_in(limit, room_us))), last.tat + min(last.part, 1) - now
end
