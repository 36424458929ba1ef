-- How what fragments/pace.lua took is given back, and adjusted.

-- The newest reservation can be taken back as if it had never been.
function pace.give_back(state, _, _, _, _, free, us)
  if not state.w or state.free_us ~= free then
    return false
  end
  state.free_us = free - us
  return true
end

function pace.adjust(state, limit, more, _, now)
  if not state.w or more < 0 then
    return false
  end
  state.free_us = math.max(state.free_us, now) + math.ceil(more * 1e12 / rate(state, limit, now))
  return true
end
