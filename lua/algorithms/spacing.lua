-- spacing: a leaky bucket as a queue. A start keeps the next one a spacing away,
-- period_us/count, and one of cost c keeps it c spacings away. Nothing is saved up
-- while nobody comes, so there is no burst.
--
-- Kept as the stretches of time that are free, in order, the last of which has no end. A
-- start takes its cost, in spacings, out of the first stretch in which that fits. So the
-- time before a slot that another limit puts off stays free, and so does a slot that was
-- given back. At most MAX_FREE stretches are kept besides the last.
--
-- Instants are exact, as parts/instants.lua has them. A slot is told rounded up: by the
-- clock, two starts may be closer than a spacing, but by less than a microsecond.
--
-- Body: "<latest_us>/<us>/<part>", the latest slot (0 if it was given back) and where the
--       last stretch begins; then for each other ";<us>/<part>/<till_us>/<till_part>".
local spacing = {}
local instants = make.instants()
local instant, after, told, is_later = instants.at, instants.after, instants.told, instants.is_later

local MAX_FREE = 32

local max, min = math.max, math.min

spacing.prepare = instants.prepare

-- An instant, or if that has passed, `now`.
local function from_now(at, now)
  return told(at) < now and instant(now) or at
end

local function last(state)
  return state.free[#state.free]
end

function spacing.load(body, limit, now)
  local latest, us, part, free = string.match(body or '0/0/0', '^(%d+)/(%d+)/(%d+)([;/%d]*)$')
  local state = { latest = tonumber(latest or 0), free = {}, is_foreign = not latest }
  for from, from_part, till, till_part in string.gmatch(free or '', ';(%d+)/(%d+)/(%d+)/(%d+)') do
    if till - now >= limit.token_us then
      table.insert(state.free, { from = instant(from + 0, from_part + 0), till = instant(till + 0, till_part + 0) })
    end
  end
  table.insert(state.free, { from = instant(tonumber(us or 0), tonumber(part)), till = instant(math.huge) })
  return state
end

-- Slots ahead stay where they are, and new ones come after them. As many spacings as were
-- still to come behind the latest slot are still to come; where nobody knows that slot, it
-- is taken to be one spacing before the end.
function spacing.convert(was, its, limit, now)
  local state, ends = spacing.load(false, limit, now), told(last(was).from)
  if ends > now then
    local since = max(now, was.latest > 0 and was.latest or ends - its.token_us)
    local share = (ends - since) * (limit.period_us * its.count) / (its.period_us * limit.count)
    last(state).from = instant(since + math.ceil(share))
  end
  return state
end

-- The first stretch in which a cost fits, not before `from`, and when it starts there.
local function fitting(state, limit, cost, from)
  for place, free in ipairs(state.free) do
    local start = from_now(free.from, from)
    if not is_later(after(limit, start, cost), free.till) then
      return place, start
    end
  end
end

function spacing.earliest(state, limit, cost, from)
  local _, start = fitting(state, limit, cost, from)
  return told(start)
end

-- A queue hands its slots out evenly by itself.
spacing.spread = spacing.earliest

-- Keeps a stretch as free, if a start fits into it, and tells whether it does.
local function keep(state, limit, place, from, till)
  if till.us < math.huge and (#state.free > MAX_FREE or is_later(after(limit, from, 1), till)) then
    return false
  end
  table.insert(state.free, place, { from = from, till = till })
  return true
end

-- The receipt is the slot and its part, which tell the exact instant.
function spacing.take(state, limit, cost, at, now)
  local place, start = fitting(state, limit, cost, at)
  local free = table.remove(state.free, place)
  if free.till.us == math.huge then
    state.latest = told(start)
  end
  keep(state, limit, place, after(limit, start, cost), free.till)
  keep(state, limit, place, from_now(free.from, now), start)
  return told(start), start.part
end

-- Of slower numbers: what was free before it may not be any more.
function spacing.overdraw(state, limit, cost, at)
  local ends, from = after(limit, instant(at), cost), last(state).from
  state.latest, state.free = 0, { { from = is_later(from, ends) and from or ends, till = instant(math.huge) } }
end

function spacing.status(state, limit, now)
  return spacing.earliest(state, limit, 1, now) == now and 1 or 0, max(0, told(last(state).from) - now)
end

-- When the last of these tokens may start, which is of that cost. Nothing is kept.
function spacing.due(state, limit, n, _, now, cost)
  local before = n - cost
  for _, free in ipairs(state.free) do
    local from = from_now(free.from, now)
    local start = after(limit, from, before)
    if not is_later(after(limit, start, cost), free.till) then
      return told(start)
    end
    before = max(0, before - max(0, instants.tokens(limit, from, free.till)))
  end
end

function spacing.store(state, limit, now)
  local from = last(state).from
  local text = string.format('%d/%d/%d', state.latest, from.us, from.part)
  for i = 1, #state.free - 1 do
    local free = state.free[i]
    text = text .. string.format(';%d/%d/%d/%d', free.from.us, free.from.part, free.till.us, free.till.part)
  end
  return text, ttl_ms(told(from) - now)
end

-- The latest slot is given back exactly, with what was free before it. Of another one only
-- its first spacing is free then: that is its own, however it was adjusted.
function spacing.give_back(state, limit, cost, slot, now, at, part)
  local endless = last(state)
  if at == state.latest and cost > 0 then
    endless.from, state.latest = after(limit, endless.from, -cost), 0
    while state.free[2] and not is_later(endless.from, state.free[#state.free - 1].till) do
      endless.from = table.remove(state.free, #state.free - 1).from
    end
    return true
  end
  local start, place = instant(at - min(part, 1), part), 1
  local till = after(limit, start, 1)
  if cost == 0 or slot < now or is_later(till, endless.from) then
    return false
  end
  while is_later(start, state.free[place].from) do
    place = place + 1
  end
  return keep(state, limit, place, start, till)
end

-- What is more comes after all slots. What is less comes back of the latest one alone, and
-- a start keeps the next one a spacing away whatever it cost.
function spacing.adjust(state, limit, more, _, now, at, part)
  local endless = last(state)
  if more > 0 then
    endless.from = after(limit, from_now(endless.from, now), min(more, limit.capacity))
    return true
  elseif at ~= state.latest then
    return false
  end
  local least, from = after(limit, instant(at - min(part, 1), part), 1), after(limit, endless.from, more)
  endless.from = is_later(least, from) and least or from
  return true
end
