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
local spare = make.spare()

local MAX_FREE, MAX_PUT_OFF = 64, 32
local NONE = {}

local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- The time that n tokens are worth, or a negative number of them: whole microseconds,
-- rounded down, and parts. Mostly a token is worth whole microseconds, and then there are
-- no parts.
local function worth(limit, n)
  if limit.token_parts == 0 then
    return n * limit.token_us, 0
  end
  local parts = n * limit.token_parts
  return n * limit.token_us + floor(parts / limit.count), parts % limit.count
end

-- The same, rounded up.
local function worth_up(limit, n)
  return -(worth(limit, -n))
end

-- How many tokens come back in a time, less a part.
local function tokens_in(limit, us, part)
  -- Whole periods first: us * count would leave the exact integers.
  return floor(us / limit.period_us) * limit.count
    + floor((us % limit.period_us * limit.count - (part or 0)) / limit.period_us)
end

function token_bucket.prepare(limit)
  limit.token_us, limit.token_parts = floor(limit.period_us / limit.count), limit.period_us % limit.count
  -- How long an empty bucket takes to fill.
  limit.full_us = worth_up(limit, limit.capacity)
  -- Other limits of the policy, or those who have other numbers, may put a slot off.
  limit.puts_off = not limit.keeps and (ARGV[1] ~= '1' or not limit.value)
end

-- Moves the TAT of a state, or of a copy of one, by a number of tokens, later or (negative)
-- earlier; from the instant of their start, if the bucket is full then.
local function move(state, limit, tokens, at)
  if at and state.tat < at then
    state.tat, state.part = at, 0
  end
  local us, part = worth(limit, tokens)
  part = part + state.part
  state.tat, state.part = state.tat + us + floor(part / limit.count), part % limit.count
end

-- The first whole microsecond at which the bucket is full.
local function full_at(state)
  return state.tat + min(state.part, 1)
end

-- The first instant at which a cost passes by the TAT alone.
local function by_tat(state, limit, cost)
  local us, part = worth(limit, limit.capacity - cost)
  return state.tat - us + (state.part > part and 1 or 0)
end

-- The slots that another limit puts off, or who has other numbers, so that they come
-- later than the bucket alone had them. Their tokens must be there then, but others may
-- use until then what comes back before. So such a slot is no part of the TAT until its
-- time has come, or nothing passes before it any more. They are kept by their instants,
-- at most MAX_PUT_OFF of these, and beyond that the first of them is the TAT's. A limit
-- that keeps something has parts/spare.lua instead.

-- A copy of the TAT, as all slots leave it behind.
local function last_tat(state, limit)
  local line = { tat = state.tat, part = state.part }
  for _, slot in ipairs(state.put_off or NONE) do
    move(line, limit, slot.cost, slot.at)
  end
  return line
end

-- How late the TAT may be before each slot that was put off, for it and those behind
-- it to find their tokens.
local function latest_tats(state, limit)
  local latest, next_one = {}, math.huge
  for i = #state.put_off, 1, -1 do
    local slot = state.put_off[i]
    next_one = min(slot.at + (worth(limit, limit.capacity - slot.cost)), max(slot.at, next_one - worth_up(limit, slot.cost)))
    latest[i] = next_one
  end
  return latest
end

-- The first instant, not before `from`, at which a cost passes between the slots that
-- were put off, and leaves them theirs.
local function between_slots(state, limit, cost, from)
  if not state.put_off then
    return max(from, by_tat(state, limit, cost))
  end
  local line, latest, at = { tat = state.tat, part = state.part }, latest_tats(state, limit), from
  for i, slot in ipairs(state.put_off) do
    at = max(at, by_tat(line, limit, cost))
    if at < slot.at and latest[i] - max(at, full_at(line)) >= worth_up(limit, cost) then
      return at
    end
    move(line, limit, slot.cost, slot.at)
    at = max(at, slot.at)
  end
  return max(at, by_tat(line, limit, cost))
end

-- How long the bucket may refill before the first slot must find the TAT as it is then.
local function room_us(state, limit, now)
  return latest_tats(state, limit)[1] - max(now, full_at(state))
end

-- Makes the first slots that were put off a part of the TAT: those whose time has come, and
-- those with less room before them than `least_us`, if that is given. A slot may be later
-- than the TAT tells, so `latest` says how late.
local function settle(state, limit, now, least_us)
  local slots = state.put_off or NONE
  while slots[1] and (limit.keeps or slots[1].at <= now or #slots > MAX_PUT_OFF
    or least_us and room_us(state, limit, now) < least_us) do
    local slot = table.remove(slots, 1)
    move(state, limit, slot.cost, slot.at)
    if slot.at > now then
      state.latest = max(state.latest or 0, slot.at + limit.full_us)
    end
  end
  state.put_off = slots[1] and slots
end

-- The place of an instant among slots, or that of the next; and the slot there, if it is
-- at that instant.
local function place_of(slots, at)
  local place = 1
  while slots[place] and slots[place].at < at do
    place = place + 1
  end
  return place, slots[place] and slots[place].at == at and slots[place]
end

-- Changes the cost of a slot that was put off, and tells whether there is one; or makes one.
local function put_off(state, at, more, makes)
  local slots = state.put_off or {}
  local place, slot = place_of(slots, at)
  if not slot then
    if not makes then
      return false
    end
    slot = { at = at, cost = 0 }
    table.insert(slots, place, slot)
  end
  slot.cost = slot.cost + more
  if slot.cost <= 0 then
    table.remove(slots, place)
  end
  state.put_off = slots[1] and slots
  return true
end

-- The bucket keeps the share of it that was used. Slots ahead stay where they are, and new
-- ones come after them; but no later than after as many tokens of now. So slots of a
-- slower rate put off nobody until they have passed. Free slots are nobody's.
function token_bucket.convert(was, its, limit, now)
  local last = was.put_off and was.put_off[#was.put_off].at + its.full_us or 0
  local debt_us, state = max(full_at(was), last) - now, { tat = 0, part = 0 }
  local ahead_us = debt_us - its.full_us
  if ahead_us > 0 then
    local tokens = ceil(ahead_us * its.capacity / its.full_us)
    for _, free in ipairs(was.free or NONE) do
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
  end
  local plain, slots = string.match(body or '0', '^([^@;]*)(.*)$')
  local tat, part, returned, latest, left_over = string.match(plain, '^(%d+)%+?(%d*)~?(%d*)~?(%d*)(!?[%d,]*)$')
  if not tat then
    return { tat = 0, part = 0, is_foreign = true }
  end
  local state = { tat = tonumber(tat), part = tonumber(part) or 0 }
  if latest ~= '' and latest + limit.full_us > now then
    state.returned, state.latest = tonumber(returned), tonumber(latest)
  end
  for mark, at, cost, left, left_part in string.gmatch(slots, '([@;])(%d+):(%d+):?(%d*):?(%-?%d*)') do
    local list = mark == '@' and 'put_off' or tonumber(at) >= now and 'free'
    if list then
      state[list] = state[list] or {}
      table.insert(state[list], { at = tonumber(at), cost = tonumber(cost), tat = tonumber(left), part = tonumber(left_part) })
    end
  end
  settle(state, limit, now)
  state.spare = limit.keeps and body and spare.load(left_over, now, state.tat)
  return state
end

-- The place of the first free slot of that cost, not before `from` nor after `till`.
local function free_place(state, cost, from, till)
  for i, free in ipairs(state.free) do
    if free.at >= from and free.at <= till and free.cost >= cost then
      return i
    end
  end
end

function token_bucket.earliest(state, limit, cost, from)
  local at = spare.suffices(state.spare, cost, from) and from or between_slots(state, limit, cost, from)
  local place = state.free and free_place(state, cost, from, at)
  return place and state.free[place].at or at
end

-- A bucket hands its future tokens out evenly by itself.
token_bucket.spread = token_bucket.earliest

-- The receipt is the TAT that was left behind, as if nothing had been given back before,
-- and its part. Of a slot that was put off it is a TAT that is not later, and a part below
-- zero.
function token_bucket.take(state, limit, cost, at, now)
  local place = state.free and free_place(state, cost, at, at)
  if place then
    local free = state.free[place]
    free.cost = free.cost - cost
    if free.cost == 0 then
      table.remove(state.free, place)
    end
    return free.tat, free.part
  end
  local before, receipt, part = limit.keeps and token_bucket.status(state, limit, now), nil, -1
  if (limit.puts_off or state.put_off) and at > max(now, by_tat(state, limit, cost)) then
    put_off(state, at, cost, true)
    receipt = at + (worth(limit, cost))
  else
    move(state, limit, cost, at)
    receipt, part = state.tat, state.part
  end
  receipt = receipt + (state.returned or 0)
  if state.put_off then
    settle(state, limit, now, worth_up(limit, 1))
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

-- Where a token is worth whole microseconds.
function token_bucket.passing(state, limit, cost, now)
  if limit.token_parts > 0 or state.part > 0 or state.free or state.put_off then
    return 1
  end
  return floor(token_bucket.status(state, limit, now) / cost)
end

function token_bucket.status(state, limit, now)
  local last, left = state, limit.capacity + min(0, tokens_in(limit, now - state.tat, state.part))
  if state.put_off then
    last, left = last_tat(state, limit), min(left, tokens_in(limit, room_us(state, limit, now)))
  end
  return max(0, left), max(0, full_at(last) - now)
end

-- When so many more tokens may have started, besides those that are to be left over.
function token_bucket.due(state, limit, n, keep, now)
  local cost = min(n + keep, limit.capacity)
  return between_slots(state, limit, cost, now) + (worth(limit, n + keep - cost))
end

-- The latest TAT there was that receipts tell of.
local function latest_tat(state)
  return max(state.latest or 0, full_at(state))
end

function token_bucket.store(state, limit, now)
  local text = int(state.tat) .. (state.part > 0 and '+' .. int(state.part) or '')
  local matters = full_at(state.put_off and last_tat(state, limit) or state)
  if state.returned or state.latest then
    text = string.format('%s~%d~%d', text, state.returned or 0, latest_tat(state))
    matters = max(matters, latest_tat(state) + limit.full_us)
  end
  text = text .. spare.store(state.spare)
  for _, slot in ipairs(state.put_off or NONE) do
    text = text .. string.format('@%d:%d', slot.at, slot.cost)
  end
  for _, free in ipairs(state.free or NONE) do
    text = text .. string.format(';%d:%d:%d:%d', free.at, free.cost, free.tat, free.part)
  end
  return text, ttl_ms(matters - now)
end

-- Takes tokens out of the TAT, all or as many of them as can be, of a take with that
-- receipt; and tells whether it did. The bucket has not been full since, as long as the
-- TAT that the take left behind, less what was given back since, lies ahead; and each slot
-- ahead, the last of which is one full bucket before the latest TAT, must still find the
-- bucket as empty as it was reckoned.
local function give(state, limit, tokens, all, receipt, now)
  local us = receipt - (state.returned or 0) - max(now, latest_tat(state) - (worth(limit, limit.capacity)))
  local most = max(0, tokens_in(limit, us))
  if most < (all and tokens or 1) then
    return false
  end
  tokens = min(tokens, most)
  state.latest = latest_tat(state)
  state.returned = (state.returned or 0) + worth_up(limit, tokens)
  move(state, limit, -tokens)
  return true
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
  if part < 0 and put_off(state, slot, -cost) then
    return true
  end
  local free = state.free or {}
  if undo(state, limit, cost, tat, part) then
    -- That may lay bare free slots that are the newest now.
    while #free > 0 and undo(state, limit, free[#free].cost, free[#free].tat, free[#free].part) do
      table.remove(free)
    end
    return true
  elseif give(state, limit, cost, true, tat, now) then
    return true
  elseif slot < now or slot >= state.tat or #free == MAX_FREE then
    return false
  end
  table.insert(free, (place_of(free, slot + 1)), { at = slot, cost = cost, tat = tat, part = part })
  state.free = free
  return true
end

function token_bucket.adjust(state, limit, more, slot, now, tat, part)
  if part < 0 and put_off(state, slot, more) then
    return true
  elseif more < 0 then
    return give(state, limit, -more, false, tat, now)
  end
  move(state, limit, more, now)
  if state.spare then
    state.spare.low = 0
  end
  return true
end
