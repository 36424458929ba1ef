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
-- see below.
--
-- What was given back out of the midst of others moves the TAT back, but not the slots
-- ahead, the last of which is then later than the TAT tells; as it is where a slot that
-- was put off is a part of the TAT before its time. So how much was given back, and the
-- latest TAT there was, are kept until no receipt can tell of them any more.
--
-- Body: "<tat_us>" or "<tat_us>+<part>"; then, if they matter,
--       "~<given_back_us>~<latest_tat_us>"; then for each instant of slots that were put
--       off "@<slot_us>:<cost>", and for each free slot ";<slot_us>:<cost>:<tat_us>:<part>"
--       with the TAT and part that its reservation left behind. Where the limit keeps
--       something, what parts/spare.lua says comes before them, in tokens.
local token_bucket = {}
local put_off = {}
local spare = make.spare()

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

function token_bucket.prepare(limit)
  limit.token_us, limit.token_parts = floor(limit.period_us / limit.count), limit.period_us % limit.count
  -- How long an empty bucket takes to fill.
  local us, parts = worth(limit, limit.capacity)
  limit.full_us = us + min(parts, 1)
  -- Other limits of the policy, or those who have other numbers, may put a slot off.
  limit.puts_off = not limit.keeps and (ARGV[1] ~= '1' or not limit.value)
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

-- The bucket keeps the share of it that was used. Slots ahead stay where they are, and new
-- ones come after them; but no later than after as many tokens of now. So slots of a
-- slower rate put off nobody until they have passed. Free slots are nobody's.
function token_bucket.convert(was, its, limit, now)
  local full_at, state = was.tat + min(was.part, 1), { tat = 0, part = 0 }
  for _, slot in ipairs(was.put_off or {}) do
    full_at = max(full_at, slot.at + its.full_us)
  end
  local debt_us = full_at - now
  if debt_us > its.full_us then
    local ahead_us = debt_us - its.full_us
    local tokens = ceil(ahead_us * its.capacity / its.full_us)
    for _, free in ipairs(was.free or {}) do
      tokens = max(0, tokens - free.cost)
    end
    state.tat = now + min(ahead_us, ceil(tokens * limit.full_us / limit.capacity)) + limit.full_us
  elseif debt_us > 0 then
    state.tat = now + ceil(debt_us * limit.full_us / its.full_us)
  end
  state.spare = limit.keeps and spare.load('', now, state.tat) or nil
  return state
end

function token_bucket.load(body, limit, now)
  -- Mostly there is a TAT alone, and this is quicker.
  local alone = not limit.keeps and tonumber(body or 0)
  if alone then
    return { tat = alone, part = 0 }
  elseif not body then
    return { tat = 0, part = 0 }
  end
  local tat, part, returned, left_over, slots, free =
    string.match(body, '^(%d+)%+?(%d*)([~%d]*)(!?[%d,]*)([@%d:]*)(.*)$')
  if not tat or string.find(slots, '^[^@]') or string.find(free, '^[^;]') then
    return { tat = 0, part = 0, is_foreign = true }
  end
  local state = { tat = tonumber(tat), part = tonumber(part) or 0 }
  for at, cost in string.gmatch(slots, '@(%d+):(%d+)') do
    state.put_off = state.put_off or {}
    table.insert(state.put_off, { at = tonumber(at), cost = tonumber(cost) })
  end
  local returned_us, latest = string.match(returned, '^~(%d+)~(%d+)$')
  if returned_us and latest + limit.full_us > now then
    state.returned, state.latest = tonumber(returned_us), tonumber(latest)
  end
  while state.put_off and (limit.keeps or state.put_off[1].at <= now) do
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

-- The first instant at which a cost passes by the TAT alone.
local function by_tat(state, limit, cost)
  local us, part = worth(limit, limit.capacity - cost)
  return state.tat - us + (state.part > part and 1 or 0)
end

-- How many tokens come back in a time, less a part.
local function tokens_in(limit, us, part)
  -- Whole periods first: us * count would leave the exact integers.
  return floor(us / limit.period_us) * limit.count
    + floor((us % limit.period_us * limit.count - (part or 0)) / limit.period_us)
end

-- The slots that another limit puts off, or who has other numbers, so that they come
-- later than the bucket alone had them. Their tokens must be there then, but others may
-- use until then what comes back before. So such a slot is no part of the TAT until its
-- time has come, or nothing passes before it any more. They are kept by their instants,
-- at most MAX_PUT_OFF of these, and beyond that the first of them is the TAT's. A limit
-- that keeps something has parts/spare.lua instead.

local MAX_PUT_OFF = 32

-- A copy of the TAT, as all slots leave it behind.
function put_off.last(state, limit)
  local line = { tat = state.tat, part = state.part }
  for _, slot in ipairs(state.put_off or {}) do
    start(line, limit, slot.cost, slot.at)
  end
  return line
end

-- How late the TAT may be before each slot that was put off, for it and those behind
-- it to find their tokens.
local function latest_tats(state, limit)
  local latest, next_one = {}, math.huge
  for i = #state.put_off, 1, -1 do
    local slot = state.put_off[i]
    local cost_us, part = worth(limit, slot.cost)
    next_one = min(slot.at + (worth(limit, limit.capacity - slot.cost)), max(slot.at, next_one - cost_us - min(part, 1)))
    latest[i] = next_one
  end
  return latest
end

-- The time from a TAT, or now, until another instant.
local function room_until(state, latest, now)
  return latest - max(now, state.tat + min(state.part, 1))
end

-- The first instant, not before `from`, at which a cost passes between the slots that
-- were put off, and leaves them theirs.
function put_off.earliest(state, limit, cost, from)
  local line, latest, at = { tat = state.tat, part = state.part }, latest_tats(state, limit), from
  local cost_us, part = worth(limit, cost)
  for i, slot in ipairs(state.put_off) do
    at = max(at, by_tat(line, limit, cost))
    if at < slot.at and room_until(line, latest[i], at) >= cost_us + min(part, 1) then
      return at
    end
    start(line, limit, slot.cost, slot.at)
    at = max(at, slot.at)
  end
  return max(at, by_tat(line, limit, cost))
end

-- The place of an instant among the slots that were put off, or that of the next.
local function place_of(slots, at)
  local place = 1
  while slots[place] and slots[place].at < at do
    place = place + 1
  end
  return place, slots[place] and slots[place].at == at
end

local function insert(state, limit, cost, at, now)
  local slots = state.put_off or {}
  state.put_off = slots
  local place, is_there = place_of(slots, at)
  if is_there then
    slots[place].cost = slots[place].cost + cost
  else
    table.insert(slots, place, { at = at, cost = cost })
    if #slots > MAX_PUT_OFF then
      settle(state, limit, now)
    end
  end
end

-- Settles the slots before which nothing passes any more.
function put_off.settle(state, limit, now)
  local token_us = limit.token_us + min(limit.token_parts, 1)
  while state.put_off and room_until(state, latest_tats(state, limit)[1], now) < token_us do
    settle(state, limit, now)
  end
end

function put_off.take(state, limit, cost, at, now)
  insert(state, limit, cost, at, now)
  put_off.settle(state, limit, now)
end

-- Changes the cost of a slot that was put off, and tells whether it still is.
function put_off.recount(state, slot, more)
  local slots = state.put_off or {}
  local place, is_there = place_of(slots, slot)
  if not is_there then
    return false
  end
  slots[place].cost = slots[place].cost + more
  if slots[place].cost <= 0 then
    table.remove(slots, place)
    state.put_off = #slots > 0 and slots or nil
  end
  return true
end

-- What may be taken now, and when the bucket is full again.
function put_off.status(state, limit, now)
  local last = put_off.last(state, limit)
  local room_us = room_until(state, min(now + limit.full_us, latest_tats(state, limit)[1]), now)
  return max(0, min(limit.capacity, tokens_in(limit, room_us))), last.tat + min(last.part, 1) - now
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
-- and its part. Of a slot that was put off it is a TAT that is not later, and a part below
-- zero.
function token_bucket.take(state, limit, cost, at, now)
  local free = state.free and take_free(state, cost, at)
  if free then
    return free.tat, free.part
  end
  if (limit.puts_off or state.put_off) and at > max(now, by_tat(state, limit, cost)) then
    put_off.take(state, limit, cost, at, now)
    return at + (worth(limit, cost)) + (state.returned or 0), -1
  end
  local before = limit.keeps and token_bucket.status(state, limit, now)
  start(state, limit, cost, at)
  local receipt, part = state.tat + (state.returned or 0), state.part
  if state.put_off then
    put_off.settle(state, limit, now)
  end
  if limit.keeps then
    state.spare = spare.note(state.spare, before, token_bucket.status(state, limit, at), cost, at, now)
  end
  return receipt, part
end

function token_bucket.overdraw(state, limit, cost, at, now)
  local most = max(state.tat, at + limit.full_us)
  token_bucket.take(state, limit, cost, at, now)
  if state.tat >= most then
    state.tat, state.part = most, 0
  end
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

-- When so many more tokens may have started, besides those that are to be left over.
function token_bucket.due(state, limit, n, keep, now)
  if state.put_off then
    local cost = min(n + keep, limit.capacity)
    return put_off.earliest(state, limit, cost, now) + (worth(limit, n + keep - cost))
  end
  local line = { tat = state.tat, part = state.part }
  start(line, limit, n + keep, now)
  return max(now, line.tat + min(line.part, 1) - limit.full_us)
end

function token_bucket.store(state, limit, now)
  local text = int(state.tat)
  if state.part > 0 then
    text = text .. '+' .. int(state.part)
  end
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

-- How many tokens of a take with that receipt can be taken out of the TAT. The bucket
-- has not been full since, as long as the TAT that the take left behind, less what was
-- given back since, lies ahead; and each slot ahead, the last of which is one full bucket
-- before the latest TAT, must still find the bucket as empty as it was reckoned.
local function returnable(state, limit, receipt, now)
  local us = receipt - (state.returned or 0) - max(now, latest_tat(state) - (worth(limit, limit.capacity)))
  if us <= 0 then
    return 0
  end
  return tokens_in(limit, us)
end

-- Takes tokens out of the TAT that are returnable.
local function give(state, limit, tokens)
  local us, part = worth(limit, tokens)
  state.latest = latest_tat(state)
  state.returned = (state.returned or 0) + us + min(part, 1)
  move(state, limit, -tokens)
end

-- Takes the newest reservation out of the TAT, if it is this one.
local function undo(state, limit, cost, receipt, part)
  if state.tat + (state.returned or 0) ~= receipt or state.part ~= part then
    return false
  end
  move(state, limit, -cost)
  return true
end

function token_bucket.give_back(state, limit, cost, slot, now, tat, part)
  if part < 0 and put_off.recount(state, slot, -cost) then
    return true
  end
  if undo(state, limit, cost, tat, part) then
    -- That may lay bare free slots that are the newest now.
    local free = state.free or {}
    while #free > 0 and undo(state, limit, free[#free].cost, free[#free].tat, free[#free].part) do
      table.remove(free)
    end
    return true
  end
  if returnable(state, limit, tat, now) >= cost then
    give(state, limit, cost)
    return true
  end
  local free = state.free or {}
  if slot < now or slot >= state.tat or #free == MAX_FREE then
    return false
  end
  local place = 1
  while free[place] and free[place].slot <= slot do
    place = place + 1
  end
  state.free = free
  if part < 0 then
    tat, part = 0, 0 -- nobody knows what it left behind
  end
  table.insert(free, place, { slot = slot, cost = cost, tat = tat, part = part })
  return true
end

function token_bucket.adjust(state, limit, more, slot, now, tat, part)
  if part < 0 and put_off.recount(state, slot, more) then
    return true
  end
  if more > 0 and state.tat < now then
    state.tat, state.part = now, 0
  end
  if more < 0 then
    more = -min(-more, returnable(state, limit, tat, now))
    if more < 0 then
      give(state, limit, -more)
    end
  else
    move(state, limit, more)
  end
  if state.spare and more > 0 then
    state.spare.low = 0
  end
  return more ~= 0
end
