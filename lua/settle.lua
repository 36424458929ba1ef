-- settle: gives back what one reservation took, as far as that can be done without
-- anybody else's slot becoming one too many; or corrects it to what its task really cost.
--
-- KEYS  as parts/policy.lua says, for one request; then where the call is marked as made,
--       where the answer to the reservation's attempt is kept (the same key for nowhere),
--       and the line's (see parts/line_tell.lua)
-- ARGV  as parts/policy.lua says, with the numbers by which the reservation was made, then:
--         at_us       the slot
--         who
--         cancels     1 to give back, 0 to correct
--       and for each limit:
--         tokens      its cost; or how many more it was, negative to give back
--         receipt_1, receipt_2                  see reserve
-- Keys of the line that are not passed: as in release.lua
-- Reply the number of limits that changed
-- Worst case: one read of all keys; for each limit one write (what an algorithm needs that
-- keeps no string, see README.md), and of those with leases MOST_HANDED slots handed
-- on or MOST_ROWS rows moved.
-- A blind retry changes nothing and gets the same reply, for MARKED_MS.
-- Needs Redis 6.2.

-- Longer than a client repeats a call.
local MARKED_MS = '60000'

settles = true
local slot, who, cancels = next_number(), next_text(), next_number() == 1
local mark, attempt = #KEYS - 2, #KEYS - 1
if raw[mark] then
  return tonumber(raw[mark])
end
local own = states_of(1)
local changed = 0
for i, limit in ipairs(limits) do
  local tokens, receipt_1, receipt_2 = next_number(), next_number(), next_number()
  local state, is_changed, give_back = own[i], false, cancels and limit.algorithm.give_back
  if not state.is_absent and give_back then
    is_changed = give_back(state, limit, tokens, slot, now, receipt_1, receipt_2, who)
  elseif not state.is_absent and tokens ~= 0 then
    is_changed = limit.algorithm.adjust(state, limit, cancels and -tokens or tokens, slot, now, receipt_1, receipt_2, who)
  end
  if not cancels and tokens > 0 and state.views and (is_changed or state.is_absent) then
    count_in_others(state, limit, tokens, math.max(now, slot))
    is_changed = true
  end
  if is_changed then
    state.changed, changed = true, changed + 1
  end
end

local refused = refuse()
if refused then
  return refused
end
if cancels and attempt ~= mark then
  redis.call('DEL', KEYS[attempt])
end
if changed > 0 then
  redis.call('SET', KEYS[mark], changed, 'PX', MARKED_MS)
  if cancels then
    tell_line(0)
  end
end
local failed = save()
if not failed then
  call_handed()
end
return failed or changed
