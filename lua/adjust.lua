-- adjust: corrects what one reservation took to what its task really cost.
--
-- KEYS  as fragments/policy.lua says, for one request
-- ARGV  at_us (the slot), who, and for each
--       limit: more (tokens to take; negative to give back), receipt_1, receipt_2
--       (see reserve)
-- Reply the number of limits that changed
-- A blind retry takes or gives the difference again.
-- Needs Redis 6.2.

local slot, who = next_number(), next_text()
local own = states_of(1)
local changed = 0
for i, limit in ipairs(limits) do
  local more, receipt_1, receipt_2 = next_number(), next_number(), next_number()
  local state = own[i]
  if more ~= 0 and limit.algorithm.adjust(state, limit, more, slot, now, receipt_1, receipt_2, who) then
    state.changed = true
    changed = changed + 1
  end
end

return save() or changed
