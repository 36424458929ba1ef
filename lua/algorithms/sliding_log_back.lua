-- How what algorithms/sliding_log.lua took is given back, and adjusted.

-- The cost of a stored start whose first token has that name and rank, and how many
-- tokens it has. They stand before the first, because "-" is before ".".
local function size_of(key, name, rank)
  local neighbour = rank > 0 and redis.call('ZRANGE', key, int(rank - 1), int(rank - 1))[1] or ''
  local prefix = name .. '-'
  if string.sub(neighbour, 1, #prefix) ~= prefix then
    return 1, 1
  end
  local second = redis.call('ZRANK', key, prefix .. '000000002')
  return tonumber(string.sub(neighbour, #prefix + 1)), second and rank - second + 1 or 2
end

-- Changes the cost of a stored start; 0 or less undoes it. A script call changes
-- one start of a key, and only looks at the key before that.
local function change_cost(state, limit, slot, name, first, more)
  local rank = redis.call('ZRANK', state.key, first)
  if not rank then
    return false
  end
  local cost, tokens = size_of(state.key, name, rank)
  local new_cost = math.max(0, cost + more)
  local new_tokens = math.min(new_cost, math.max(2, limit.count))
  local place, members = math.max(2, math.min(tokens, new_tokens)), {}
  list_tokens(state.removed, name, place, tokens, cost)
  list_tokens(members, name, place, new_tokens, new_cost)
  state.added[1] = { at = slot, members = members }
  if new_cost == 0 then
    state.removed[#state.removed + 1] = first
  end
  if more < 0 then
    state.closed = nil
  end
  return true
end

-- A start that will not be is as if it had never been, wherever its slot is.
function sliding_log.give_back(state, limit, _, slot, _, number, _, who)
  local name = name_of(slot, number)
  return change_cost(state, limit, slot, name, name .. '.' .. who, -math.huge)
end

-- What a start really cost counts at its own instant, even if that is too much. One
-- that was adjusted to nothing, or lost with Redis's data, comes back.
function sliding_log.adjust(state, limit, more, slot, now, number, _, who)
  local name = name_of(slot, number)
  if change_cost(state, limit, slot, name, name .. '.' .. who, more) then
    return true
  end
  if more < 0 or slot <= now - limit.period_us then
    return false
  end
  state.added[1] = { at = slot, members = start_tokens(limit, name, who, more) }
  state.last = math.max(state.last or 0, slot)
  state.number = math.max(state.number, number)
  return true
end
