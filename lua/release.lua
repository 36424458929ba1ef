-- release: ends the leases of a task that has ended. Unlike cancel it leaves alone
-- what the task took from limits of other kinds: it did start.
--
-- KEYS  as parts/policy.lua says, for one request; the policy has its concurrency
--       limits only. Last the line's (see parts/line_tell.lua)
-- ARGV  as parts/policy.lua says, then who         the task
--       born_us (receipt_1 of reserve)        for each limit
-- Reply the number of leases that ended; those that ran out, or that another
--       attempt of the same task has taken over, are not among them
-- Keys of the line that are not passed: its /standing:<state key>, /lacking:<state key> and
--       /held, which are its own, so that one key stands for them.
-- Worst case: for each limit a dozen commands on its leases, MOST_LEASES of which may be
-- cleared away (see algorithms/concurrency.lua), and MOST_HANDED slots handed on or
-- MOST_ROWS rows moved.
-- A blind retry is safe: a lease is known by its birth, and ends once, so that no second
-- slot is handed on. Its reply is 0 then.
-- Needs Redis 6.2.

local ended, held_us = 0, 0
local who, own = next_text(), states_of(1)
look_at_standing(own)
for i, limit in ipairs(limits) do
  local born = next_number()
  if limit.algorithm.let_go(own[i], now, who, born) then
    own[i].changed = true
    ended, held_us = ended + 1, math.max(held_us, now - born)
  end
end

local refused = refuse()
if refused then
  return refused
end
if ended > 0 then
  tell_line(held_us)
end
local failed = save()
if not failed then
  call_handed()
end
return failed or ended
