-- The answer that an attempt was granted is kept, for it to hear of it again if it was
-- lost: the slot, the limit that set it, the instant before which it must be used, and
-- the receipts.

-- How long after its slot: as long as a call may take, with all its repeats.
local KEPT_US = 5000000

-- The text of the answer that begins at `first` in a reply, from so many limits.
local function answer_text(reply, first, limits_in_all)
  local numbers = { int(reply[first]), int(reply[first + 2]), int(reply[first + 3]) }
  for i = 1, 2 * limits_in_all do
    numbers[i + 3] = int(reply[first + 3 + i])
  end
  return table.concat(numbers, '/')
end

-- Writes that text as the answer at `first` in a reply, if it is one.
local function tell_again(text, reply, first, limits_in_all)
  local numbers = {}
  for number in string.gmatch(text, '-?%d+') do
    numbers[#numbers + 1] = tonumber(number)
  end
  if #numbers ~= 3 + 2 * limits_in_all then
    return false
  end
  reply[first], reply[first + 1], reply[first + 2], reply[first + 3] = numbers[1], 1, numbers[2], numbers[3]
  for i = 1, 2 * limits_in_all do
    reply[first + 3 + i] = numbers[i + 3]
  end
  return true
end

-- Keeps the text at a place in KEYS.
local function keep_answer(place, text, slot)
  redis.call('SET', KEYS[place], text, 'PX', int(ttl_ms(slot + KEPT_US - now)))
end
