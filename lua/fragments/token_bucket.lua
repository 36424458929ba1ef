-- token_bucket: `count` tokens per `period_us`, refilled evenly, into a bucket
-- of `capacity`. Kept as the generic cell rate algorithm (ITU-T I.371) keeps it:
-- one theoretical arrival time (TAT), the instant at which the bucket is full.
--
-- A token is worth period_us/count microseconds. Where that is no integer the
-- remainder is carried as `part`, in units of 1/count microsecond, so that no
-- error adds up while the bucket is in use.
--
-- A future slot that was cancelled is kept as free, for the next request to take
-- it as it stands: nobody else's slot moves, so no count can go wrong. Left
-- unused, it is gone once its time has passed. At most MAX_FREE are kept.
--
-- State: "<tat_us>/<full_us>" or "<tat_us>+<part>/<full_us>", where full_us is how
--        long an empty bucket took to fill when this was written; then for each
--        free slot ";<slot_us>:<cost>:<tat_us>:<part>" with the TAT and part that
--        its reservation left behind.
local token_bucket = {}
algorithms.token_bucket = token_bucket

local MAX_FREE = 64

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- The time that n tokens are worth, as whole microseconds and parts. Mostly a
-- token is worth whole microseconds, and then there are no parts.
local function worth(limit, n)
  local token_us = limit.token_us
  if not token_us then
    token_us = floor(limit.period_us / limit.count)
    limit.token_us, limit.token_parts = token_us, limit.period_us % limit.count
  end
  if limit.token_parts == 0 then
    return n * token_us, 0
  end
  local parts = n * limit.token_parts
  return n * token_us + floor(parts / limit.count), parts % limit.count
end

-- How long an empty bucket takes to fill.
local function full_us(limit)
  if not limit.full_us then
    local us, part = worth(limit, limit.capacity)
    limit.full_us = us + min(part, 1)
  end
  return limit.full_us
end

-- Other numbers than those the state was written with: the bucket keeps the share
-- of it that was used. Slots ahead stay where they are, and new ones come after
-- them.
local function rescale(state, limit, now, was_full_us)
  local debt_us = state.tat + min(state.part, 1) - now
  state.part, state.free, state.changed = 0, {}, true
  if debt_us > was_full_us then
    state.tat = now + debt_us - was_full_us + full_us(limit)
  elseif debt_us > 0 then
    state.tat = now + ceil(debt_us * full_us(limit) / was_full_us)
  end
end

function token_bucket.load(raw, limit, now)
  local state = { tat = 0, part = 0, free = {} }
  if not raw then
    return state
  end
  local slash = string.find(raw, '/', 1, true) or #raw + 1
  local plus = string.find(raw, '+', 1, true)
  local semicolon = string.find(raw, ';', 1, true)
  state.tat = tonumber(string.sub(raw, 1, (plus or slash) - 1))
  if plus then
    state.part = tonumber(string.sub(raw, plus + 1, slash - 1))
  end
  local was_full_us = tonumber(string.sub(raw, slash + 1, (semicolon or 0) - 1))
  if not (state.tat and state.part and was_full_us) then
    return { tat = 0, part = 0, free = {}, is_foreign = true }
  end
  if was_full_us ~= full_us(limit) then
    rescale(state, limit, now, was_full_us)
  elseif semicolon then
    for slot, cost, tat, part in string.gmatch(raw, ';(%d+):(%d+):(%d+):(%d+)') do
      slot = tonumber(slot)
      if slot >= now then
        state.free[#state.free + 1] =
          { slot = slot, cost = tonumber(cost), tat = tonumber(tat), part = tonumber(part) }
      end
    end
  end
  return state
end

function token_bucket.earliest(state, limit, cost, from)
  local us, part = worth(limit, limit.capacity - cost)
  local at = state.tat - us
  if state.part > part then
    at = at + 1
  end
  if at <= from then
    return from
  end
  for _, free in ipairs(state.free) do
    if free.slot >= from and free.slot < at and free.cost >= cost then
      at = free.slot
    end
  end
  return at
end

-- A bucket hands its future tokens out evenly by itself.
token_bucket.spread = token_bucket.earliest

-- Moves the TAT by a number of tokens, later or (negative) earlier.
local function move(state, limit, tokens)
  local us, part = worth(limit, math.abs(tokens))
  if tokens < 0 then
    us, part = -us, -part
  end
  part = part + state.part
  state.tat = state.tat + us + floor(part / limit.count)
  state.part = part % limit.count
end

function token_bucket.take(state, limit, cost, at)
  for i, free in ipairs(state.free) do
    if free.slot == at and free.cost >= cost then
      free.cost = free.cost - cost
      if free.cost == 0 then
        table.remove(state.free, i)
      end
      return free.tat, free.part
    end
  end
  if state.tat < at then
    state.tat, state.part = at, 0
  end
  move(state, limit, cost)
  return state.tat, state.part
end

-- How many tokens of a take that left `tat` behind can be taken out of the TAT.
-- The bucket has not been full since, as long as `tat` lies ahead; and each slot
-- ahead, the last of which is one full bucket before the TAT, must still find the
-- bucket as empty as it was reckoned.
local function returnable(state, limit, tat, now)
  local us = tat - max(now, state.tat + min(state.part, 1) - full_us(limit))
  if us <= 0 then
    return 0
  end
  return floor(us / limit.period_us) * limit.count
    + floor(us % limit.period_us * limit.count / limit.period_us)
end

-- Takes the newest reservation out of the TAT, if it is this one.
local function undo(state, limit, cost, tat, part)
  if state.tat ~= tat or state.part ~= part then
    return false
  end
  move(state, limit, -cost)
  return true
end

function token_bucket.give_back(state, limit, cost, slot, now, tat, part)
  if undo(state, limit, cost, tat, part) then
    -- That may lay bare free slots that are the newest now.
    local last = #state.free
    while last > 0 and undo(state, limit, state.free[last].cost, state.free[last].tat, state.free[last].part) do
      table.remove(state.free, last)
      last = last - 1
    end
    return true
  end
  if returnable(state, limit, tat, now) >= cost then
    move(state, limit, -cost)
    return true
  end
  if slot < now or slot >= state.tat or #state.free == MAX_FREE then
    return false
  end
  local place = 1
  while state.free[place] and state.free[place].slot <= slot do
    place = place + 1
  end
  table.insert(state.free, place, { slot = slot, cost = cost, tat = tat, part = part })
  return true
end

function token_bucket.adjust(state, limit, more, _, now, tat)
  if more > 0 and state.tat < now then
    state.tat, state.part = now, 0
  end
  if more < 0 then
    more = -min(-more, returnable(state, limit, tat, now))
  end
  move(state, limit, more)
  return more ~= 0
end

-- A start may be late by a little without a count being wrong; see Go's Lateness.
function token_bucket.use_by()
  return nil
end

function token_bucket.status(state, limit, now)
  local debt_us = state.tat + min(state.part, 1) - now
  if debt_us <= 0 then
    return limit.capacity, 0
  end
  if limit.token_parts == 0 and state.part == 0 then
    return max(0, limit.capacity - ceil(debt_us / limit.token_us)), debt_us
  end
  -- Whole periods first: debt_us * count would leave the exact integers.
  local periods = floor((state.tat - now) / limit.period_us)
  local rest = (state.tat - now - periods * limit.period_us) * limit.count + state.part
  local used = periods * limit.count + ceil(rest / limit.period_us)
  return max(0, limit.capacity - used), debt_us
end

function token_bucket.store(state, limit, now)
  local text = int(state.tat)
  if state.part > 0 then
    text = text .. '+' .. int(state.part)
  end
  text = text .. '/' .. int(full_us(limit))
  for _, free in ipairs(state.free) do
    text = text .. ';' .. table.concat({ int(free.slot), int(free.cost), int(free.tat), int(free.part) }, ':')
  end
  return text, ttl_ms(state.tat + min(state.part, 1) - now)
end
