-- line_hand: hands free slots of concurrency limits to those who stand by for them.

-- How many one call hands a slot to, at most.
local MOST_HANDED = 4
-- How long a slot is kept for whom it was handed to, if that one gives no sign of life. It
-- is no longer than the shortest lease.
local HANDED_US = 1000000

-- What is to be said on the channel for calls when all is written.
local calls = {}

-- The first who stand by at a state key with a turn up to `last`; `key` is the line's.
local function standing_at(key, state_key, last)
  return redis.call('ZRANGEBYSCORE', key .. '/standing:' .. state_key, '-inf', last, 'LIMIT', 0, MOST_HANDED)
end

-- What has to be free for one of them, its cost, and its task.
local function parse_standing(member)
  local asked, cost, length, name = string.match(member, '^(%d+),(%d+)/(%d+)|(.*)$')
  return tonumber(asked), tonumber(cost), string.match(string.sub(name, length + 1), '/(.*)$')
end

-- Hands what is free in a state of a limit to the first who stand by there, in order; `key`
-- is the line's, and held_us how long the slot was held that came back, 0 for none. Returns
-- how many got one, and whether another of them stands by.
--
-- A call tells what a task has to know to start: the birth of its lease, and when that
-- ends. In a freeze it does not, and the task has to ask.
local function hand_slots(key, state_key, limit, state, first, held_us)
  local passed = {}
  for i = 1, #first do
    local asked, cost, task = parse_standing(first[i])
    local born = limit.algorithm.hand(state, limit, asked, cost, now, task, now + HANDED_US)
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
    redis.call('ZREM', key .. '/standing:' .. state_key, unpack(passed))
  end
  return #passed, #first > #passed
end

-- Calls those to whom slots were handed.
local function call_handed()
  for _, text in ipairs(calls) do
    redis.pcall('PUBLISH', string.sub(KEYS[1], 1, -7) .. 'call', text)
  end
end
