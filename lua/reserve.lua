-- reserve: takes the cost of each request from all limits of a policy, or from
-- none, for the first instant at which all of them pass.
--
-- KEYS  as fragments/policy.lua says
-- ARGV  as fragments/policy.lua says, then for each request:
--         wait_us     how far ahead its slot may lie
--         who         the task, for limits that remember it
--         cost        for each limit
-- Reply now_us, then for each request:
--         at_us       the slot, or the first instant at which it would pass
--         granted     1 or 0
--         held_by     the limit that set at_us (1..n), 0 for none, -1 for a freeze
--         use_by_us   a start must come before it; 0 for no such instant
--         remaining, reset_after_us             for each limit
--         receipt_1, receipt_2                  for each limit, for cancel
-- A blind retry is safe but takes the cost again.
-- Needs Redis 6.2.

local reply = { now }

for request = 1, request_count do
  local wait_us, who = next_number(), next_text()
  local costs = next_costs()
  local opens = math.max(now, frozen_until)
  local at, held_by = first_instant(request, costs, opens, 'earliest', who)
  if held_by == 0 and opens > now then
    held_by = -1
  end

  -- What is ahead of now gets its own instant, within reach.
  local slot = at
  if at > now and at - now <= wait_us then
    slot = first_instant(request, costs, at, 'spread', who)
  end
  local reach = now + wait_us
  for i, limit in ipairs(limits) do
    if limit.algorithm.horizon then
      reach = math.min(reach, limit.algorithm.horizon(state_of(request, i), limit, now, costs[i], who) - 1)
    end
  end
  local granted = slot == now or slot <= reach

  local use_by, receipts = 0, {}
  for i, limit in ipairs(limits) do
    receipts[2 * i - 1], receipts[2 * i] = 0, 0
    if granted then
      local state = state_of(request, i)
      receipts[2 * i - 1], receipts[2 * i] = limit.algorithm.take(state, limit, costs[i], slot, now, who)
      state.changed = true
      local ends = limit.algorithm.use_by(state, limit, slot)
      if ends and (use_by == 0 or ends < use_by) then
        use_by = ends
      end
    end
  end

  reply[#reply + 1] = granted and slot or at
  reply[#reply + 1] = granted and 1 or 0
  reply[#reply + 1] = held_by
  reply[#reply + 1] = use_by
  report(reply, request)
  for i = 1, #receipts do
    reply[#reply + 1] = receipts[i]
  end
end

return save() or reply
