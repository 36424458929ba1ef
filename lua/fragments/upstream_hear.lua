-- How fragments/upstream.lua learns: from one response at a time, in any order.
--
-- A window is known by its end by the upstream's own clock, as the response told it;
-- ends that differ by no more than SAME_US are one, for they are told in whole
-- seconds. A response of an older window tells nothing any more. One of the same
-- window can only tighten. A later window begins anew with what its first response
-- says.
--
-- After a window's end we take it that the next has begun. If a call that was sent
-- after that hears that the old one goes on, then it does.
local SAME_US = 2000000

local IGNORED, HEARD, STALE = 0, 1, 2

-- Responses of the window that is in force tighten it.
local function tighten(state, said)
  state.remaining = math.min(state.remaining, said.remaining)
  state.until_us = math.min(state.until_us, said.until_us)
  if said.limit > 0 then
    state.quota = state.quota > 0 and math.min(state.quota, said.limit) or said.limit
  end
  return HEARD
end

-- A window that nothing was heard of yet.
local function begin(state, said)
  state.kind, state.heard, state.heard_us = WINDOWS, 1, said.ends_us
  state.until_us, state.window_us = said.until_us, said.window_us
  state.quota, state.remaining = said.limit, said.remaining
  return HEARD
end

local function hear_window(state, said)
  if state.kind ~= WINDOWS then
    return begin(state, said)
  end
  local same_us = math.min(SAME_US, math.floor(state.window_us / 2))
  local later_us = said.ends_us - state.heard_us
  if later_us > same_us then
    return begin(state, said)
  end
  if state.heard == 1 then
    return later_us >= -same_us and tighten(state, said) or STALE
  end
  -- The window in force began where the one heard of was to end.
  if said.sent_us < state.until_us - state.window_us then
    return STALE
  end
  state.remaining = math.min(state.remaining, said.remaining)
  state.heard, state.heard_us, state.until_us = 1, said.ends_us, said.until_us
  return HEARD
end

-- The calls in flight may come on top of what the upstream has counted.
local function hear_refills(state, said, now)
  if said.limit == 0 then
    return IGNORED
  end
  if state.kind ~= REFILLS then
    state.until_us = 0
  end
  state.kind, state.quota, state.window_us = REFILLS, said.limit, said.window_us
  local used = said.limit - said.remaining + state.flying + state.flown
  state.until_us = math.max(state.until_us, now + worth(state, used))
  return HEARD
end

-- Hears what a response said, and that its call has ended. `said` has
--   cost, slot, epoch   what reserve took for the call; a cost of 0 for nothing
--   is_used             the upstream may have counted the call without our seeing it
--   kind                of the quota, 0 if the response did not say
--   limit, remaining, ends_us, until_us, window_us, sent_us
--   close_us            closes the key for that long; -1 opens it
-- and the reply is what became of it: IGNORED, HEARD or STALE.
function upstream.hear(state, _, said, now)
  land(state, said.cost, said.slot, said.epoch)
  if said.is_used and state.kind == WINDOWS then
    state.remaining = math.max(0, state.remaining - said.cost)
  end
  if said.close_us > 0 then
    if state.closed_us <= now then
      state.reopens_us = 0
    end
    state.closed_us = math.max(state.closed_us, now + said.close_us)
  elseif said.close_us < 0 then
    state.closed_us, state.reopens_us = 0, 0
  end
  if said.kind == WINDOWS then
    return hear_window(state, said)
  elseif said.kind == REFILLS then
    return hear_refills(state, said, now)
  end
  return IGNORED
end
