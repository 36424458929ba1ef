-- How what fragments/fixed_window.lua took is given back, and adjusted.

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
