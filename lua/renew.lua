-- renew: keeps the leases of running tasks for another term. A lease that is gone comes
-- back, if there is room for it, only where that was asked for, and not later than was
-- asked: a call may run long after its caller gave it up, and must not take a slot for
-- a task that has ended.
--
-- KEYS  as parts/policy.lua says, each state key once; the policy has its
--       concurrency limits only
-- ARGV  as parts/policy.lua says, then back_until_us   leases come back before this instant; 0 for never
--       then for each request:
--         who           the task
--         place, cost, born_us                  for each limit: where in KEYS its state
--                       key is, and receipt_1 of reserve
-- Reply now_us, then for each request 1 if it holds all its leases now, 0 if one is
--       gone, because it ran out or was ended, or because another attempt of the same
--       task has taken it over
-- Worst case: 1,024 leases (mostKeys in throttle/calls.go); for each key one look at 300 of
-- them and one write for 166, and MOST_LEASES that may be cleared away.
-- A blind retry is safe: a lease is known by its birth.
-- Needs Redis 6.2.

local reply = { now }
local back = now < next_number()

local first = argument
while argument < #ARGV do
  expect(next_text(), 2)
end
argument = first
while argument < #ARGV do
  local who, held = next_text(), 1
  for i, limit in ipairs(limits) do
    local state = state_at(next_number(), i)
    local cost, born = next_number(), next_number()
    if limit.algorithm.renew(state, limit, cost, now, born, who, back) then
      state.changed = true
    else
      held = 0
    end
  end
  reply[#reply + 1] = held
end

return save() or reply
