-- How what algorithms/concurrency.lua took is given back, and adjusted.

function concurrency.give_back(state, _, _, _, now, born, _, who)
  local held = lease_of(state, who, now)
  if not held or held.born ~= born then
    return false
  end
  put(state, who, held, false)
  return true
end

-- A running task holds what it holds.
function concurrency.adjust()
  return false
end
