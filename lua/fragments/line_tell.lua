-- line_tell: tells the waiting line of a policy, if there is one, that tokens came
-- back. The last of KEYS is the line's key.

-- How many of the rows that wait for a slot of one key get to look at it.
local MOST_ROWS = 4

local function tell_line()
  if not raw[#KEYS] then
    return
  end
  for place = 2, #KEYS - 1 do
    if limits[(place - 2) % #limits + 1].algorithm.renew then
      local rows = redis.call('ZPOPMIN', KEYS[#KEYS] .. '/lacking:' .. KEYS[place], MOST_ROWS)
      for i = 1, #rows, 2 do
        redis.call('ZADD', KEYS[#KEYS] .. '/held', 'XX', int(now), rows[i])
      end
    end
  end
  redis.call('PUBLISH', KEYS[#KEYS] .. '/signal', '')
end
