-- How what fragments/token_bucket.lua took is given back, and adjusted.

local function is_of_now(limit, part)
  return part % MARKS == limit.mark or part == -1 - limit.mark
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
  if state.tat + (state.returned or 0) ~= receipt or marked_part(state, limit) ~= part then
    return false
  end
  move(state, limit, -cost)
  return true
end

function token_bucket.give_back(state, limit, cost, slot, now, tat, part)
  if not is_of_now(limit, part) then
    return false
  end
  if part < 0 and put_off and put_off.recount(state, slot, -cost) then
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
  if more < 0 and not is_of_now(limit, part) then
    return false
  end
  if part < 0 and put_off and put_off.recount(state, slot, more) then
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
