-- How what fragments/interval_bucket.lua took is given back, and adjusted.

-- Takes back tokens of a take: those that no refill has brought back since.
local function take_back(state, limit, tokens, now, start, marked_taken)
  local taken = math.floor(marked_taken / MARKS)
  local left = taken - math.max(0, math.floor((now - start) / limit.period_us)) * limit.count
  if not state.start or state.last > now and left ~= state.taken then
    return false
  end
  tokens = math.min(tokens, left, state.taken)
  state.taken = state.taken - math.max(0, tokens)
  return tokens > 0
end

function interval_bucket.give_back(state, limit, cost, slot, now, start, taken)
  if taken % MARKS ~= mark(limit) then
    return false
  end
  if take_back(state, limit, cost, now, start, taken) then
    return true
  end
  if not state.start or slot < state.start or slot >= state.start + limit.period_us then
    return false
  end
  state.free = math.min(state.free + cost, state.taken)
  return cost > 0
end

function interval_bucket.adjust(state, limit, more, _, now, start, taken)
  if more < 0 then
    return taken % MARKS == mark(limit) and take_back(state, limit, -more, now, start, taken)
  end
  state.start = state.start or now
  state.taken = state.taken + more
  if state.spare then
    state.spare.low = 0
  end
  return true
end
