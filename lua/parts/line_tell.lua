-- line_tell: tells the waiting line of a policy, if there is one, that tokens came
-- back. A slot is handed to the first who stands by for it; if nobody does, the rows
-- that lack one look at it. The last of KEYS is the line's key.

-- How many of the rows that wait for a slot of one key get to look at it.
local MOST_ROWS = 4

-- Who stands by first, by the places of the state keys.
local first = {}

-- Reads that before what the first of them holds, which is read then with what the task holds. Where the line
-- is not there few stand by, and the states tell whether anybody does.
local function look_at_standing(own)
  for i, state in ipairs(raw[#KEYS] and own or {}) do
    if limits[i].algorithm.hand then
      first[i + 1] = standing_at(KEYS[#KEYS], state.key, '+inf')
      if first[i + 1][1] then
        limits[i].algorithm.expect(state, select(3, parse_standing(first[i + 1][1])))
      end
    end
  end
end

-- What came back is in the states, which are still to be saved; held_us is how long a
-- task had it, 0 if it did not start.
local function tell_line(held_us)
  local key = KEYS[#KEYS]
  local is_there, is_enough = raw[#KEYS], held_us > 0
  for place = 2, #KEYS - 1 do
    local limit, state = limits[(place - 2) % #limits + 1], states[place]
    if state and limit.algorithm.hand then
      local stand_by = false
      if first[place] or limit.algorithm.is_stood_for(state, now) then
        first[place] = first[place] or standing_at(key, KEYS[place], '+inf')
        stand_by = select(2, hand_slots(key, KEYS[place], limit, state, first[place], held_us))
      end
      if is_there and not stand_by then
        is_enough = false
        local rows = redis.call('ZPOPMIN', key .. '/lacking:' .. KEYS[place], MOST_ROWS)
        for i = 1, #rows, 2 do
          redis.call('ZADD', key .. '/held', 'XX', int(now), rows[i])
        end
      end
    end
  end
  if is_there and not is_enough then
    redis.pcall('PUBLISH', key .. '/signal', int(held_us))
  end
end
