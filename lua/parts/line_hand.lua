-- line_hand: hands free slots of concurrency limits to those who stand by for them.

-- How many one call hands a slot to, at most.
local MOST_HANDED = 4
-- How long a slot is kept for whom it was handed to, if that one does not ask.
local HANDED_US = 500000

-- Hands what is free in a state of a limit to those who stand by there with a turn up to
-- `last`, in order; `key` is the line's, and held_us how long the slot was held that came
-- back, 0 for none. Returns how many got one, and whether another of them stands by.
local function hand_slots(key, state_key, limit, state, last, held_us)
  local standing = key .. '/standing:' .. state_key
  local first = redis.call('ZRANGEBYSCORE', standing, '-inf', last, 'LIMIT', 0, MOST_HANDED)
  local handed = {}
  for i = 1, #first do
    local asked, cost, length, name = string.match(first[i], '^(%d+),(%d+)/(%d+)|(.*)$')
    local task = string.match(string.sub(name, length + 1), '/(.*)$')
    if not limit.algorithm.hand(state, limit, tonumber(asked), tonumber(cost), now, task, now + HANDED_US) then
      break
    end
    handed[i], state.changed = first[i], true
    redis.pcall('PUBLISH', string.sub(KEYS[1], 1, -7) .. 'call', int(held_us) .. '/' .. task)
  end
  if #handed > 0 then
    redis.call('ZREM', standing, unpack(handed))
  end
  return #handed, #first > #handed
end
