-- How what fragments/upstream.lua took is given back, and adjusted.

-- Ends a flight, wherever it is counted.
local function land(state, cost, slot, epoch)
  if state.kind == WINDOWS and slot >= state.until_us and state.ahead >= cost then
    state.ahead = state.ahead - cost
  elseif epoch == state.epoch then
    state.flying = math.max(0, state.flying - cost)
  elseif epoch == state.epoch - 1 then
    state.flown = math.max(0, state.flown - cost)
  end
end

function upstream.give_back(state, _, cost, slot, now, epoch)
  land(state, cost, slot, epoch)
  if state.kind == REFILLS then
    state.until_us = math.max(now, state.until_us - worth(state, cost))
  end
  return true
end

-- A call in flight may turn out to cost more or less. Of one that has ended the
-- upstream itself has told.
function upstream.adjust(state, _, more, slot, now, epoch)
  land(state, -more, slot, epoch)
  if state.kind == REFILLS then
    state.until_us = math.max(now, state.until_us + worth(state, more))
  end
  return true
end
