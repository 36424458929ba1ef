-- cancel: gives back what one reservation took, as far as that can be done
-- without anybody else's slot becoming one too many.
--
-- KEYS  as fragments/policy.lua says, for one request, then the line's (see
--       fragments/line_tell.lua)
-- ARGV  at_us (the slot), who, and for each
--       limit: cost, receipt_1, receipt_2 (see reserve)
-- Reply the number of limits that got their tokens back
-- A blind retry is safe where receipts are instants of their own; the caller
-- cancels a reservation once.
-- Needs Redis 6.2.

local slot, who = next_number(), next_text()
local own = states_of(1)
local given_back = 0
for i, limit in ipairs(limits) do
  local cost, receipt_1, receipt_2 = next_number(), next_number(), next_number()
  local state = own[i]
  if limit.algorithm.give_back(state, limit, cost, slot, now, receipt_1, receipt_2, who) then
    state.changed = true
    given_back = given_back + 1
  end
end

local refused = refuse()
if refused then
  return refused
end
if given_back > 0 then
  tell_line(0)
end
return save() or given_back
