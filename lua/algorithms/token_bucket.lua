-- token_bucket: `count` tokens per `period_us`, refilled evenly, into a bucket
-- of `capacity`. Kept as the generic cell rate algorithm (ITU-T I.371) keeps it:
-- one theoretical arrival time (TAT), the instant at which the bucket is full, exact as
-- parts/instants.lua has it.
--
-- A future slot that was cancelled is kept as free, for the next request to take
-- it as it stands: nobody else's slot moves, so no count can go wrong. Left
-- unused, it is gone once its time has passed. At most MAX_FREE are kept.
--
-- A slot that is put off, so that it comes later than the bucket alone had it, is no part
-- of the TAT until its time has come; see below.
--
-- What was given back out of the midst of others moves the TAT back, but not the slots
-- ahead, the last of which is then later than the TAT tells; as it is where a slot that
-- was put off is a part of the TAT before its time. So how much was given back, and the
-- latest TAT there was, are kept until no receipt can tell of them any more.
--
-- Body: "<tat_us>" or "<tat_us>+<part>"; then, if they matter,
--       "~<given_back_us>~<latest_tat_us>"; then for each slot that was put off
--       "@<slot_us>,<cost>", or for a row of them "@<slot_us>,<cost>,<tat_us>,<part>" with
--       the latest TAT it may find; and for each free slot ";<slot_us>,<cost>,<tat_us>,<part>"
--       with the TAT that its reservation left behind.
local token_bucket = {}
local instants = make.instants()
local instant, after, tokens_in, told = instants.at, instants.after, instants.tokens, instants.told
local told_after, is_later, later = instants.told_after, instants.is_later, instants.later

local MAX_FREE, MAX_PUT_OFF = 64, 32
local ZERO = instant(0)

local ceil, max, min = math.ceil, math.max, math.min

function token_bucket.prepare(limit)
  instants.prepare(limit)
  -- How long an empty bucket takes to fill.
  limit.full_us = told_after(limit, ZERO, limit.capacity)
  -- Other limits of the policy, or those who have other numbers, may put a slot off; and what
  -- is kept for urgent requests does.
  limit.puts_off = limit.keeps or ARGV[1] ~= '1' or not limit.value
end

-- The TAT behind a start. If the bucket is full then, it begins at the start.
local function behind(limit, tat, cost, at)
  return after(limit, tat.us < at and instant(at) or tat, cost)
end

-- The first instant at which a cost passes by a TAT alone.
local function by_tat(limit, tat, cost)
  return told_after(limit, tat, cost - limit.capacity)
end

-- The slots that come later than the bucket alone had them. Their tokens must be there then,
-- but others may use until then what comes back before. So such a slot is no part of the TAT
-- until its time has come, or nothing passes before it any more: the TAT takes it over no
-- sooner than at its instant, and as late as the slot still finds its tokens.
--
-- Where something is kept, all slots ahead are of that kind. Those that follow each other as
-- fast as tokens come back are a row, which the TAT takes over bit by bit: `at` is the first
-- one's instant, or what became of it, and `tat` how late the row may begin.
--
-- At most MAX_PUT_OFF are kept, and beyond that the first of them is the TAT's.

-- How late the TAT may be before a slot, or before a row.
local function latest_tat(limit, slot)
  return slot.tat or after(limit, instant(slot.at), limit.capacity - slot.cost)
end

-- The same for each of them, if those behind it are to find their tokens, too.
local function latest_tats(state, limit)
  local latest = {}
  for i = #state.put_off, 1, -1 do
    local slot = state.put_off[i]
    latest[i] = latest_tat(limit, slot)
    local for_next = latest[i + 1] and later(instant(slot.at), after(limit, latest[i + 1], -slot.cost))
    if for_next and is_later(latest[i], for_next) then
      latest[i] = for_next
    end
  end
  return latest
end

-- The TAT as all slots leave it behind.
local function last_tat(state, limit)
  local tat = state.tat
  for _, slot in ipairs(state.put_off) do
    tat = behind(limit, tat, slot.cost, slot.at)
  end
  return tat
end

-- The first instant, not before `from`, at which a cost passes between the slots that
-- were put off, and leaves them theirs.
local function between_slots(state, limit, cost, from)
  local tat, latest = state.tat, state.put_off[1] and latest_tats(state, limit)
  for i, slot in ipairs(state.put_off) do
    local at = max(from, by_tat(limit, tat, cost))
    if not is_later(behind(limit, tat, cost, at), latest[i]) then
      return at
    end
    tat = behind(limit, tat, slot.cost, slot.at)
  end
  return max(from, by_tat(limit, tat, cost))
end

-- How many tokens pass now before the first slot.
local function room(state, limit, now)
  return tokens_in(limit, later(instant(now), state.tat), latest_tats(state, limit)[1])
end

-- The last instant that may be one of a slot's, or of a row's.
local function last_of(limit, slot)
  return told_after(limit, instant(slot.at), slot.tat and slot.cost - 1 or 0)
end

-- Makes the first slots that were put off a part of the TAT: those whose time has come,
-- what has begun of a row, and if `fills` those before which no token passes. A slot may be
-- later than the TAT tells then, so `latest` says how late.
local function settle(state, limit, now, fills)
  local slots = state.put_off
  while slots[1] do
    local slot, last = slots[1], last_of(limit, slots[1])
    local cost = slot.cost
    if last > now and #slots <= MAX_PUT_OFF and not (fills and room(state, limit, now) < 1) then
      cost = min(cost, tokens_in(limit, later(instant(slot.at), state.tat), instant(now)) + 1)
    end
    if cost <= 0 then
      return
    end
    state.tat = behind(limit, state.tat, cost, slot.at)
    if cost < slot.cost then
      slot.at, slot.tat, slot.cost = after(limit, instant(slot.at), cost).us, after(limit, slot.tat, cost), slot.cost - cost
    else
      table.remove(slots, 1)
      if last > now then
        state.latest = max(state.latest or 0, last + limit.full_us)
      end
    end
  end
end

-- Whether a slot follows a slot or a row as soon as tokens come back, and both may be as
-- late; then they are one row.
local function joins(limit, row, cost, at)
  local latest, its = latest_tat(limit, row), after(limit, instant(at), limit.capacity - cost - row.cost)
  if after(limit, instant(at), -row.cost).us > row.at or is_later(latest, its) or its.us > latest.us + 1 then
    return false
  end
  row.tat, row.cost = latest, row.cost + cost
  return true
end

local function put_off(state, limit, cost, at)
  local slots, tat, place = state.put_off, state.tat, 1
  while slots[place] and slots[place].at <= at do
    tat = behind(limit, tat, slots[place].cost, slots[place].at)
    if by_tat(limit, tat, cost) > at then
      break
    end
    place = place + 1
  end
  local before = slots[place - 1]
  if before and before.at == at and not before.tat then
    before.cost = before.cost + cost
  elseif not (limit.keeps and before and joins(limit, before, cost, at)) then
    table.insert(slots, place, { at = at, cost = cost })
  end
end

-- Changes the cost of a slot that was put off, and tells whether it did. Which one of a row it
-- was, nobody knows; so what is left of that begins later by what is given back.
local function change_put_off(state, limit, more, at, now)
  local slots, place = state.put_off, #state.put_off
  while place > 0 and slots[place].at ~= at and not (slots[place].tat and slots[place].at < at) do
    place = place - 1
  end
  local slot = slots[place]
  if slot and slot.tat then
    local begins = after(limit, instant(slot.at), -more)
    if more > 0 or at <= now or is_later(begins, slot.tat) then
      return false
    end
    slot.at = told(begins)
  end
  if slot then
    slot.cost = slot.cost + more
    if slot.cost <= 0 then
      table.remove(slots, place)
    end
  end
  return slot ~= nil
end

-- The bucket keeps the share of it that was used. Slots ahead stay where they are, and new
-- ones come after them; but no later than after as many tokens of now. So slots of a
-- slower rate put off nobody until they have passed. Free slots are nobody's.
function token_bucket.convert(was, its, limit, now)
  local slots, state = was.put_off, token_bucket.load(false, limit, now)
  local debt_us = max(told(was.tat), slots[1] and last_of(its, slots[#slots]) + its.full_us or 0) - now
  local ahead_us = debt_us - its.full_us
  if ahead_us > 0 then
    local tokens = ceil(ahead_us * its.capacity / its.full_us)
    for _, free in ipairs(was.free) do
      tokens = max(0, tokens - free.cost)
    end
    state.tat.us = now + min(ahead_us, ceil(tokens * limit.full_us / limit.capacity)) + limit.full_us
  elseif debt_us > 0 then
    state.tat.us = now + ceil(debt_us * limit.full_us / its.full_us)
  end
  return state
end

function token_bucket.load(body, limit, now)
  local alone = tonumber(body or 0)
  if alone then -- mostly, and this is quicker
    return { tat = instant(alone), put_off = {}, free = {} }
  end
  local tat, part, returned, latest, slots =
    string.match(body, '^(%d+)%+?(%d*)~?(%d*)~?(%d*)([@;,%-%d]*)$')
  local state = { tat = instant(tonumber(tat or 0), tonumber(part)), put_off = {}, free = {}, is_foreign = not tat }
  if tat and latest ~= '' and latest + limit.full_us > now then
    state.returned, state.latest = tonumber(returned), tonumber(latest)
  end
  for mark, at, cost, us, its_part in string.gmatch(slots or '', '([@;])(%d+),(%d+),?(%d*),?(%-?%d*)') do
    local slot = { at = at + 0, cost = cost + 0, tat = us ~= '' and instant(us + 0, its_part + 0) or nil }
    if mark == '@' or slot.at >= now then
      table.insert(mark == '@' and state.put_off or state.free, slot)
    end
  end
  settle(state, limit, now)
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
  local at = between_slots(state, limit, cost, from)
  local place = free_place(state, cost, from, at)
  return place and state.free[place].at or at
end

-- A bucket hands its future tokens out evenly by itself.
token_bucket.spread = token_bucket.earliest

-- The receipt is the TAT that was left behind, as if nothing had been given back before,
-- and its part. Of a slot that was put off it is a TAT that is not later, and a part below
-- zero.
function token_bucket.take(state, limit, cost, at, now)
  local place = free_place(state, cost, at, at)
  if place then
    local free = state.free[place]
    free.cost = free.cost - cost
    if free.cost == 0 then
      table.remove(state.free, place)
    end
    return free.tat.us, free.tat.part
  end
  local receipt
  if (limit.puts_off or state.put_off[1]) and at > max(now, by_tat(limit, state.tat, cost)) then
    put_off(state, limit, cost, at)
    receipt = instant(after(limit, instant(at), cost).us, -1)
  else
    state.tat = behind(limit, state.tat, cost, at)
    receipt = state.tat
  end
  settle(state, limit, now, true)
  return receipt.us + (state.returned or 0), receipt.part
end

function token_bucket.overdraw(state, limit, cost, at, now)
  local most = later(state.tat, instant(at + limit.full_us))
  token_bucket.take(state, limit, cost, at, now)
  if not is_later(most, state.tat) then
    state.tat = instant(most.us)
  end
end

-- Where a token is worth whole microseconds.
function token_bucket.passing(state, limit, cost, now)
  if limit.token_parts > 0 or state.tat.part > 0 or state.free[1] or state.put_off[1] then
    return 1
  end
  return math.floor(token_bucket.status(state, limit, now) / cost)
end

function token_bucket.status(state, limit, now)
  local left = limit.capacity + min(0, tokens_in(limit, state.tat, instant(now)))
  if state.put_off[1] then
    left = min(left, room(state, limit, now))
  end
  return max(0, left), max(0, told(last_tat(state, limit)) - now)
end

-- When so many more tokens may have started, besides those that are to be left over.
function token_bucket.due(state, limit, n, keep, now)
  local cost = min(n + keep, limit.capacity)
  return between_slots(state, limit, cost, now) + after(limit, ZERO, n + keep - cost).us
end

-- The latest TAT there was that receipts tell of.
local function highest_tat(state)
  return max(state.latest or 0, told(state.tat))
end

local function slots_text(mark, slots)
  local text = ''
  for _, slot in ipairs(slots) do
    text = text .. string.format('%s%d,%d', mark, slot.at, slot.cost)
      .. (slot.tat and string.format(',%d,%d', slot.tat.us, slot.tat.part) or '')
  end
  return text
end

function token_bucket.store(state, limit, now)
  local text = int(state.tat.us) .. (state.tat.part > 0 and '+' .. int(state.tat.part) or '')
  local matters = told(last_tat(state, limit))
  if state.returned or state.latest then
    text = string.format('%s~%d~%d', text, state.returned or 0, highest_tat(state))
    matters = max(matters, highest_tat(state) + limit.full_us)
  end
  return text .. slots_text('@', state.put_off) .. slots_text(';', state.free), ttl_ms(matters - now)
end

-- Takes tokens out of the TAT, all or as many of them as can be, of a take with that
-- receipt; and tells whether it did. The bucket has not been full since, as long as the
-- TAT that the take left behind, less what was given back since, lies ahead; and each slot
-- ahead, the last of which is one full bucket before the latest TAT, must still find the
-- bucket as empty as it was reckoned. When that is forgotten which receipts tell of, the
-- bucket has been full, so a start leaves no TAT behind that is later than its slot lets it.
local function give(state, limit, tokens, all, receipt, slot, now)
  local last_slot = highest_tat(state) - after(limit, ZERO, limit.capacity).us
  local left_behind = min(receipt - (state.returned or 0), slot + limit.full_us)
  local most = tokens_in(limit, instant(max(now, last_slot)), instant(left_behind))
  if most < (all and tokens or 1) then
    return false
  end
  tokens = min(tokens, most)
  state.latest = highest_tat(state)
  state.returned = (state.returned or 0) + told_after(limit, ZERO, tokens)
  state.tat = after(limit, state.tat, -tokens)
  return true
end

-- Takes the newest reservation out of the TAT, if it is this one.
local function undo(state, limit, cost, receipt, part)
  if state.tat.us + (state.returned or 0) ~= receipt or state.tat.part ~= part then
    return false
  end
  state.tat = after(limit, state.tat, -cost)
  return true
end

function token_bucket.give_back(state, limit, cost, slot, now, tat, part)
  if cost == 0 then -- all of it was given back before
    return false
  elseif part < 0 and change_put_off(state, limit, -cost, slot, now) then
    return true
  end
  local free = state.free
  if state.tat.us <= slot + limit.full_us and undo(state, limit, cost, tat, part) then
    -- That may lay bare free slots that are the newest now.
    while #free > 0 and undo(state, limit, free[#free].cost, free[#free].tat.us, free[#free].tat.part) do
      table.remove(free)
    end
    return true
  elseif give(state, limit, cost, true, tat, slot, now) then
    return true
  elseif slot < now or slot >= state.tat.us or #free == MAX_FREE then
    return false
  end
  local place = 1
  while free[place] and free[place].at <= slot do
    place = place + 1
  end
  table.insert(free, place, { at = slot, cost = cost, tat = instant(tat, part) })
  return true
end

function token_bucket.adjust(state, limit, more, slot, now, tat, part)
  if part < 0 and change_put_off(state, limit, more, slot, now) then
    return true
  elseif more < 0 then
    return give(state, limit, -more, false, tat, slot, now)
  end
  state.tat = behind(limit, state.tat, more, now)
  return true
end
