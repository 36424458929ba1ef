-- How fragments/pace.lua learns: from refusals that do not say for how long.

-- Cuts the rate for a call that was sent at some instant and refused. The reply is
-- whether it did.
function pace.hear(state, limit, said, now)
  if not said.is_slow then
    return 0
  end
  local w = declared(limit)
  local repeats = 0
  if state.w then
    local gap = math.min(GAP_US, limit.period_us)
    if said.sent_us < state.cut_us or now < state.cut_us + gap then
      return 0
    end
    w = rate(state, limit, said.sent_us)
    if w > 0.8 * state.w and w < 1.25 * state.w then
      repeats = math.min(MOST_REPEATS, state.repeats + 1)
    end
  end
  state.w = math.max(w, declared(limit) * LEAST)
  state.cut_us, state.repeats, state.free_us = now, repeats, math.max(now, state.free_us or 0)
  return 1
end
