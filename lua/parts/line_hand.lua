-- line_hand: hands free slots of concurrency limits to those who stand by for them.

-- How many one call hands a slot to, at most.
local MOST_HANDED = 4
-- How long a slot is kept for whom it was handed to, if that one gives no sign of life. It
-- is no longer than the shortest lease.
local HANDED_US = 1000000

-- What is to be said on the channel for calls when all is written.
local calls = {}

-- Hands what is free in a state of a limit to those who stand by there with a turn up to
-- `last`, in order; `line_key` is the line's, and held_us how long the slot was held that
-- came back, 0 for none. Returns how many got one, and whether another of them stands by.
--
-- A call tells what a task has to know to start: the birth of its lease, and when that
-- ends. In a freeze it does not, and the task has to ask.
local function hand_slots(line_key, state_key, limit, state, last, held_us)
  local standing = line_key .. '/standing:' .. state_key
  local first = redis.call('ZRANGEBYSCORE', standing, '-inf', last, 'LIMIT', 0, MOST_HANDED)
  local passed = {}
  for i = 1, #first do
    local asked, cost, length, name = string.match(first[i], '^(%d+),(%d+)/(%d+)|(.*)$')
    local task = string.match(string.sub(name, length + 1), '/(.*)$')
    local born = limit.algorithm.hand(state, limit, tonumber(asked), tonumber(cost), now, task, now + HANDED_US)
    if not born then
      break
    end
    passed[i] = first[i]
    if born > 0 then
      state.changed = true
      local slot = frozen_until > now and '' or ',' .. int(born) .. ',' .. int(now + HANDED_US)
      calls[#calls + 1] = int(held_us) .. slot .. '/' .. task
    end
  end
  if #passed > 0 then
    redis.call('ZREM', standing, unpack(passed))
  end
  return #passed, #first > #passed
end

-- Calls those to whom slots were handed.
local function call_handed()
  for _, text in ipairs(calls) do
    redis.pcall('PUBLISH', string.sub(KEYS[1], 1, -7) .. 'call', text)
  end
end
