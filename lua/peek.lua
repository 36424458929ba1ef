-- peek: what reserve would answer one request that can not wait. Writes nothing.
--
-- KEYS  as parts/policy.lua says, for one request
-- ARGV  as parts/policy.lua says, then who (the task, for limits that remember it), urgent (see reserve) and the cost
--       for each limit
-- Reply now_us, at_us, held_by, then for each limit: remaining, reset_after_us
--       (see reserve)
-- Worst case: one read of a key for each limit, and what an algorithm looks up for one
-- decision (see README.md).
-- A blind retry is safe.
-- Needs Redis 6.2.

local who, urgent = next_text(), next_urgent()
local costs = {}
for i = 1, #limits do
  costs[i] = next_number()
end
local own = states_of(1)
local opens = math.max(now, frozen_until)
local at, held_by = first_instant(own, asked_for(costs, own, urgent, who), opens, 'earliest', who)
if held_by == 0 and opens > now then
  held_by = -1
end

local reply = { now, at, held_by }
report(reply, #reply, own)
return refuse(true) or reply
