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
-- A slot that another limit puts off is no part of the TAT until its time has come;
-- see fragments/put_off.lua, which is there if there are other limits.
--
-- What was given back out of the midst of others moves the TAT back, but not the slots
-- ahead, the last of which is then later than the TAT tells; as it is where a slot that
-- was put off is a part of the TAT before its time. So how much was given back, and the
-- latest TAT there was, are kept until no receipt can tell of them any more.
--
-- State: "<tat_us>/<full>" or "<tat_us>+<part>/<full>", where full is how long an empty
--        bucket took to fill when this was written, and what it held then, as in
--        "3600s5000" or, where that are no whole seconds, "50000u5"; then, if
--        they matter, "~<given_back_us>~<latest_tat_us>"; then for each
--        instant of slots that were put off "@<slot_us>:<cost>", and for each free
--        slot ";<slot_us>:<cost>:<tat_us>:<part>" with the TAT and part that its
--        reservation left behind. Where the limit keeps something, what
--        fragments/spare.lua says comes before them, in tokens.
local token_bucket = {}
local put_off

local MAX_FREE = 64

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- The time that n tokens are worth, as whole microseconds and parts. Mostly a
-- token is worth whole microseconds, and then there are no parts.
local function worth(limit, n)
  if limit.token_parts == 0 then
    return n * limit.token_us, 0
  end
  local parts = n * limit.token_parts
  return n * limit.token_us + floor(parts / limit.count), parts % limit.count
end

-- Moves the TAT by a number of tokens, later or (negative) earlier.
local function move(state, limit, tokens)
  if limit.token_parts == 0 and state.part == 0 then
    state.tat = state.tat + tokens * limit.token_us
    return
  end
  local us, part = worth(limit, math.abs(tokens))
  if tokens < 0 then
    us, part = -us, -part
  end
  part = part + state.part
  state.tat = state.tat + us + floor(part / limit.count)
  state.part = part % limit.count
end

-- What a start does to the TAT of a state, or of a copy of one.
local function start(state, limit, cost, at)
  if state.tat < at then
    state.tat, state.part = at, 0
  end
  move(state, limit, cost)
end

-- Makes the first of the slots that were put off a part of the TAT, which tells of no
-- slot ahead that is so late.
local function settle(state, limit, now)
  local slot = table.remove(state.put_off, 1)
  start(state, limit, slot.cost, slot.at)
  if slot.at > now then
    state.latest = max(state.latest or 0, slot.at + limit.full_us)
  end
  if #state.put_off == 0 then
    state.put_off = nil
  end
end

-- Other numbers than those the state was written with: the bucket keeps the share
-- of it that was used. Slots ahead stay where they are, and new ones come after
-- them; but no later than after as many tokens of now. So slots of a slower rate put
-- off nobody until they have passed.
local function rescale(state, limit, now, was_full_us, was_capacity)
  for _, slot in ipairs(state.put_off or {}) do
    state.tat = max(state.tat, slot.at + was_full_us)
  end
  state.put_off = nil
  local debt_us = state.tat + min(state.part, 1) - now
  state.part, state.changed = 0, true
  if debt_us > was_full_us then
    local ahead_us = debt_us - was_full_us
    local tokens = ceil(ahead_us * was_capacity / was_full_us)
    state.tat = now + min(ahead_us, ceil(tokens * limit.full_us / limit.capacity)) + limit.full_us
  elseif debt_us > 0 then
    state.tat = now + ceil(debt_us * limit.full_us / was_full_us)
  end
end

-- Reads a state with more than a TAT in it; see above.
local function load_all(raw, limit, now)
  local tat, part, was_full, unit, was_capacity, returned, left_over, slots, free =
    string.match(raw, '^(%d+)%+?(%d*)/(%d+)([su])(%d+)([~%d]*)(!?[%d,]*)([@%d:]*)(.*)$')
  if not tat or string.find(free, '^[^;]') then
    return { tat = 0, part = 0, is_foreign = true }
  end
  local state = { tat = tonumber(tat), part = tonumber(part) or 0 }
  for at, cost in string.gmatch(slots, '@(%d+):(%d+)') do
    state.put_off = state.put_off or {}
    table.insert(state.put_off, { at = tonumber(at), cost = tonumber(cost) })
  end
  if was_full .. unit .. was_capacity ~= limit.full_text then
    rescale(state, limit, now, was_full * (unit == 's' and 1000000 or 1), tonumber(was_capacity))
    state.spare = limit.keeps and spare.load('', now, state.tat) or nil
    return state
  end
  local returned_us, latest = string.match(returned, '^~(%d+)~(%d+)$')
  if returned_us and latest + limit.full_us > now then
    state.returned, state.latest = tonumber(returned_us), tonumber(latest)
  end
  while state.put_off and (not put_off or limit.keeps or state.put_off[1].at <= now) do
    settle(state, limit, now)
  end
  if limit.keeps then
    state.spare = spare.load(left_over, now, state.tat)
  end
  for slot, cost, left, left_part in string.gmatch(free, ';(%d+):(%d+):(%d+):(%d+)') do
    if tonumber(slot) >= now then
      state.free = state.free or {}
      table.insert(state.free,
        { slot = tonumber(slot), cost = tonumber(cost), tat = tonumber(left), part = tonumber(left_part) })
    end
  end
  return state
end

function token_bucket.load(raw, limit, now)
  if not raw then
    return { tat = 0, part = 0 }
  end
  -- Mostly there is a TAT alone, and this is quicker.
  local slash = string.find(raw, '/', 1, true)
  local tat = slash and tonumber(string.sub(raw, 1, slash - 1))
  if tat and not limit.keeps and string.sub(raw, slash + 1) == limit.full_text then
    return { tat = tat, part = 0 }
  end
  return load_all(raw, limit, now)
end

-- The first instant at which a cost passes by the TAT alone.
local function by_tat(state, limit, cost)
  local us, part = worth(limit, limit.capacity - cost)
  return state.tat - us + (state.part > part and 1 or 0)
end

function token_bucket.earliest(state, limit, cost, from)
  local at = state.put_off and put_off.earliest(state, limit, cost, from) or by_tat(state, limit, cost)
  if at <= from or state.spare and spare.suffices(state.spare, cost, from) then
    return from
  end
  if state.free then
    for _, free in ipairs(state.free) do
      if free.slot >= from and free.slot < at and free.cost >= cost then
        at = free.slot
      end
    end
  end
  return at
end

-- A bucket hands its future tokens out evenly by itself.
token_bucket.spread = token_bucket.earliest

-- Takes the cost out of a free slot, if there is one at that instant.
local function take_free(state, cost, at)
  for i, free in ipairs(state.free) do
    if free.slot == at and free.cost >= cost then
      free.cost = free.cost - cost
      if free.cost == 0 then
        table.remove(state.free, i)
      end
      return free
    end
  end
end

-- The receipt is the TAT that was left behind, as if nothing had been given back before,
-- and its part, marked with the numbers by which it was reckoned: they tell nothing of a
-- TAT that was converted to others. Of a slot that was put off it is a TAT that is not
-- later, and the mark alone, below zero.
local MARKS = 2 ^ 26

local function marked_part(state, limit)
  return state.part * MARKS + limit.mark
end

function token_bucket.take(state, limit, cost, at, now)
  local free = state.free and take_free(state, cost, at)
  if free then
    return free.tat, free.part
  end
  if put_off and not limit.keeps and at > max(now, by_tat(state, limit, cost)) then
    put_off.take(state, limit, cost, at, now)
    return at + (worth(limit, cost)) + (state.returned or 0), -1 - limit.mark
  end
  local before = limit.keeps and token_bucket.status(state, limit, now)
  start(state, limit, cost, at)
  local receipt, part = state.tat + (state.returned or 0), marked_part(state, limit)
  if state.put_off then
    put_off.settle(state, limit, now)
  end
  if limit.keeps then
    state.spare = spare.note(state.spare, before, token_bucket.status(state, limit, at), cost, at, now)
  end
  return receipt, part
end

-- The latest TAT there was that receipts tell of.
local function latest_tat(state)
  return max(state.latest or 0, state.tat + min(state.part, 1))
end

-- Where a token is worth whole microseconds.
function token_bucket.passing(state, limit, cost, now)
  if limit.token_parts > 0 or state.part > 0 or state.free or state.put_off then
    return 1
  end
  return floor((limit.full_us - max(0, state.tat - now)) / (cost * limit.token_us))
end

-- How many tokens come back in a time.
local function tokens_in(limit, us)
  -- Whole periods first: us * count would leave the exact integers.
  return floor(us / limit.period_us) * limit.count + floor(us % limit.period_us * limit.count / limit.period_us)
end

function token_bucket.status(state, limit, now)
  if state.put_off then
    return put_off.status(state, limit, now)
  end
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
  text = text .. '/' .. limit.full_text
  local last = state.put_off and put_off.last(state, limit) or state
  local matters = last.tat + min(last.part, 1)
  if state.returned or state.latest then
    text = string.format('%s~%d~%d', text, state.returned or 0, latest_tat(state))
    matters = max(matters, latest_tat(state) + limit.full_us)
  end
  if state.spare then
    text = text .. spare.store(state.spare)
  end
  for _, slot in ipairs(state.put_off or {}) do
    text = text .. string.format('@%d:%d', slot.at, slot.cost)
  end
  for _, free in ipairs(state.free or {}) do
    text = text .. string.format(';%d:%d:%d:%d', free.slot, free.cost, free.tat, free.part)
  end
  return text, ttl_ms(matters - now)
end
