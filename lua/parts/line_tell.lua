-- line_tell: tells the waiting line of a policy, if there is one, that tokens came
-- back. A slot is handed to the first who stands by for it; if nobody does, the rows
-- that lack one look at it. The last of KEYS is the line's key.

-- How many of the rows that wait for a slot of one key get to look at it.
local MOST_ROWS = 4

-- What came back is in the states, which are still to be saved; held_us is how long a
-- task had it, 0 if it did not start.
local function tell_line(held_us)
  if not raw[#KEYS] then
    return
  end
  local key = KEYS[#KEYS]
  local is_enough = held_us > 0
  for place = 2, #KEYS - 1 do
    local limit = limits[(place - 2) % #limits + 1]
    if states[place] and limit.algorithm.hand then
      local _, stand_by = hand_slots(key, KEYS[place], limit, states[place], '+inf', held_us)
      if not stand_by then
        is_enough = false
        local rows = redis.call('ZPOPMIN', key .. '/lacking:' .. KEYS[place], MOST_ROWS)
        for i = 1, #rows, 2 do
          redis.call('ZADD', key .. '/held', 'XX', int(now), rows[i])
        end
      end
    end
  end
  if not is_enough then
    redis.pcall('PUBLISH', key .. '/signal', int(held_us))
  end
end
