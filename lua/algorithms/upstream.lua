-- upstream: what the upstream itself says about a limit's quota, for one key. It
-- stands beside the limit that the quota is declared as, and like any other limit
-- lets a request pass or not; reserve takes from both or from none. What is heard
-- comes in by hear.
--
-- A quota with windows: `remaining` is the least that any response of the window has
-- told, so it is what was left when the last call that we know of was counted. Every
-- call that has ended was counted by then; a call in flight may or may not have been.
-- So what is left for new starts is remaining - in flight, at the least: never more
-- than the upstream has, and exactly what it has as soon as those calls have ended.
-- What others use besides us shows in `remaining`. The window's end is told to the
-- second, so each response bounds it anew, and the earliest bound counts. After the
-- end a full quota is there again, less those that are in flight, until a response
-- of the new window says better.
--
-- A quota that refills: as in token_bucket, the instant at which it is full, moved
-- later by every start, and by every response that has less left.
--
-- Calls whose process died never end. So they are counted by epochs, and are
-- forgotten between one and two epochs after their reservation.
--
-- A key can be closed until some time. Who waits for that gets an instant of its own
-- after it, at the limit's pace.
--
-- count, period_us are the declared limit's, option is the length of an epoch in us,
-- extra is the headroom: tokens to leave alone.
--
-- State: thirteen numbers, separated by "/", as FIELDS names them.
local upstream = {}

local FIELDS = {
  'kind', -- 0 nothing heard yet, 1 windows, 2 refills
  'until_us', -- the end of the window, or when the bucket is full
  'window_us', 'quota', 'remaining',
  'heard_us', -- the end of the latest window heard of, by the upstream's own clock
  'heard', -- 1 if something was heard of the window, 0 if it only followed another
  'closed_us', 'reopens_us', -- until when, and when the next who waits may start
  'epoch', 'flying', 'flown', -- in flight, from this epoch and the one before
  'ahead', -- in flight for the window after this one
}
local PATTERN = '^' .. string.rep('(%d+)/', #FIELDS - 1) .. '(%d+)$'

local WINDOWS, REFILLS = 1, 2

-- What happens with time: windows follow each other, and epochs.
local function roll(state, limit, now)
  local epoch = math.floor(now / limit.option)
  if epoch > state.epoch then
    state.flown = epoch == state.epoch + 1 and state.flying or 0
    state.flying, state.epoch = 0, epoch
  end
  if state.kind == WINDOWS and state.until_us <= now then
    state.until_us = now + state.window_us - (now - state.until_us) % state.window_us
    state.remaining, state.heard = state.quota, 0
    state.flying, state.ahead = state.flying + state.ahead, 0
    state.kind = state.quota > 0 and WINDOWS or 0
  end
end

function upstream.load(raw, limit, now)
  local state, numbers = {}, { string.match(raw or '', PATTERN) }
  for i, field in ipairs(FIELDS) do
    state[field] = tonumber(numbers[i] or 0)
  end
  state.is_foreign = raw and #numbers == 0
  roll(state, limit, now)
  return state
end

-- How much of a full quota may be used, which is never nothing.
local function usable(state, limit)
  return state.quota == 0 and math.huge or math.max(1, state.quota - limit.extra)
end

local function left(state, limit)
  return state.remaining - math.max(0, state.quota - usable(state, limit)) - state.flying - state.flown
end

-- The time that n tokens take to come back.
local function worth(state, n)
  return math.ceil(n * state.window_us / state.quota)
end

-- Whether an instant lies in the window after this one.
local function is_ahead(state, at)
  return state.kind == WINDOWS and at >= state.until_us
end

-- The field that counts a flight of that cost, or nil if it is forgotten.
local function counts(state, cost, slot, epoch)
  return is_ahead(state, slot) and state.ahead >= cost and 'ahead' or epoch == state.epoch and 'flying'
    or epoch == state.epoch - 1 and 'flown' or nil
end

-- A cost above all that may be used needs all of it.
function upstream.earliest(state, limit, cost, from)
  local at, most = math.max(from, state.closed_us), usable(state, limit)
  cost = math.min(cost, most)
  if state.kind == REFILLS then
    return math.max(at, state.until_us - worth(state, most - cost))
  elseif state.kind == WINDOWS and at < state.until_us and left(state, limit) < cost then
    at = state.until_us
  end
  if is_ahead(state, at) and state.ahead + cost > most then
    at = math.max(at, state.until_us + state.window_us)
  end
  return at
end

-- The same for a slot ahead of now: no herd when a window begins, nor when a key is
-- open again.
function upstream.spread(state, limit, cost, from, now)
  local at = upstream.earliest(state, limit, cost, from)
  if state.closed_us > now then
    at = math.max(at, state.reopens_us)
  end
  if is_ahead(state, at) and state.quota > 0 then
    at = math.max(at, state.until_us + math.floor(state.ahead * state.window_us / state.quota))
  end
  return at
end

-- The receipt is the epoch.
function upstream.take(state, limit, cost, at, now)
  if state.closed_us > now then
    state.reopens_us = math.max(state.reopens_us, at) + math.ceil(cost * limit.period_us / limit.count)
  end
  if state.kind == REFILLS then
    state.until_us = math.max(state.until_us, at) + worth(state, cost)
  end
  local field = counts(state, 0, at, state.epoch)
  state[field] = state[field] + cost
  return state.epoch, 0
end

function upstream.passing(state, limit, cost, now)
  if state.closed_us > now or state.kind == REFILLS then
    return 1
  end
  return state.kind == WINDOWS and math.floor(left(state, limit) / cost) or math.huge
end

-- Slots are counted for this window and the next.
function upstream.horizon(state)
  return state.kind == WINDOWS and state.until_us + state.window_us or math.huge
end

-- When so many more tokens may have started, besides those that are to be left over:
-- evenly, where a window begins.
function upstream.due(state, limit, n, keep, now)
  local lacking = n + keep
  if state.closed_us > now then
    return math.max(state.closed_us, state.reopens_us) + math.floor((lacking - 1) * limit.period_us / limit.count)
  elseif state.kind == REFILLS then
    return math.max(now, math.max(now, state.until_us) + worth(state, lacking - usable(state, limit)))
  elseif state.kind == 0 or lacking <= left(state, limit) then
    return now
  elseif state.quota == 0 then
    return state.until_us
  end
  local before = state.ahead + lacking - math.max(0, left(state, limit)) - 1
  local windows = math.floor(before / usable(state, limit))
  return state.until_us + windows * state.window_us
    + math.floor((before - windows * usable(state, limit)) * state.window_us / state.quota)
end

-- -1 where nothing is known.
function upstream.status(state, limit, now)
  if state.closed_us > now then
    return 0, state.closed_us - now
  elseif state.kind == WINDOWS then
    return math.max(0, left(state, limit)), state.until_us - now
  elseif state.kind == REFILLS then
    local debt_us = math.max(0, state.until_us - now)
    return math.max(0, usable(state, limit) - math.ceil(debt_us * state.quota / state.window_us)), debt_us
  end
  return -1, 0
end

-- A learned limit outlives its window by another one, and by the calls in flight.
function upstream.store(state, limit, now)
  local numbers = {}
  for i, field in ipairs(FIELDS) do
    numbers[i] = int(state[field])
  end
  local last = math.max(now, state.until_us, state.closed_us)
  return table.concat(numbers, '/'), ttl_ms(last + state.window_us + 2 * limit.option - now)
end

local function land(state, cost, slot, epoch)
  local field = counts(state, cost, slot, epoch)
  if field then
    state[field] = math.max(0, state[field] - cost)
  end
end

-- A call in flight may turn out to cost more or less. Of one that has ended the
-- upstream itself has told.
function upstream.adjust(state, _, more, slot, now, epoch)
  land(state, -more, slot, epoch)
  if state.kind == REFILLS then
    state.until_us = math.max(now, state.until_us + (more > 0 and worth(state, more) or -worth(state, -more)))
  end
  return true
end

-- How it learns: from one response at a time, in any order.
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

local function hear_window(state, said)
  local later_us = said.ends_us - state.heard_us
  local same_us = math.min(SAME_US, math.floor(state.window_us / 2))
  if state.kind ~= WINDOWS or later_us > same_us then
    state.kind, state.heard, state.heard_us = WINDOWS, 1, said.ends_us
    state.until_us, state.window_us = said.until_us, said.window_us
    state.quota, state.remaining = said.limit, said.remaining
    return HEARD
  end
  if state.heard == 1 and later_us < -same_us or state.heard == 0 and said.sent_us < state.until_us - state.window_us then
    return STALE
  elseif state.heard == 0 then
    state.heard, state.heard_us = 1, said.ends_us
  end
  state.remaining = math.min(state.remaining, said.remaining)
  state.until_us = math.min(state.until_us, said.until_us)
  if said.limit > 0 then
    state.quota = state.quota > 0 and math.min(state.quota, said.limit) or said.limit
  end
  return HEARD
end

-- The calls in flight may come on top of what the upstream has counted.
local function hear_refills(state, said, now)
  local until_us = state.kind == REFILLS and state.until_us or 0
  state.kind, state.quota, state.window_us = REFILLS, said.limit, said.window_us
  local used = said.limit - said.remaining + state.flying + state.flown
  state.until_us = math.max(until_us, now + worth(state, used))
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
    state.reopens_us = state.closed_us > now and state.reopens_us or 0
    state.closed_us = math.max(state.closed_us, now + said.close_us)
  elseif said.close_us < 0 then
    state.closed_us, state.reopens_us = 0, 0
  end
  if said.kind == WINDOWS then
    return hear_window(state, said)
  elseif said.kind == REFILLS and said.limit > 0 then
    return hear_refills(state, said, now)
  end
  return IGNORED
end
