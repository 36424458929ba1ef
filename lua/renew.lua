-- renew: keeps the leases of running tasks for another term. A lease that ran out
-- before comes back if there is room for it.
--
-- KEYS  as parts/policy.lua says; the policy has its concurrency limits only
-- ARGV  as parts/policy.lua says, then for each request:
--         who         the task
--         cost, born_us (receipt_1 of reserve)  for each limit
-- Reply for each request: 1 if it holds all its leases now, 0 if one is lost,
--       because it ran out and there was no room, or because another attempt of
--       the same task has taken it over
-- A blind retry is safe.
-- Needs Redis 6.2.

local reply = {}

for request = 1, (#KEYS - 1) / #limits do
  local own = states_of(request)
  local who = next_text()
  local held = 1
  for i, limit in ipairs(limits) do
    local cost, born = next_number(), next_number()
    local state = own[i]
    if limit.algorithm.renew(state, limit, cost, now, born, who) then
      state.changed = true
    else
      held = 0
    end
  end
  reply[request] = held
end

return save() or reply
