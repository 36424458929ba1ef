-- reserve: takes the cost of each request from all limits of a policy, or from
-- none, for the first instant at which all of them pass.
--
-- KEYS  as fragments/policy.lua says, each state key once
-- ARGV  as fragments/policy.lua says, then the number of requests, and for each:
--         wait_us     how far ahead its slot may lie
--         who         the task, for limits that remember it
--         place, cost for each limit: where in KEYS its state key is, and tokens
-- Reply now_us, then for each request:
--         at_us       the slot, or the first instant at which it would pass
--         granted     1 or 0
--         held_by     the limit that set at_us (1..n), 0 for none, -1 for a freeze
--         use_by_us   a start must come before it; 0 for no such instant
--         receipt_1, receipt_2                  for each limit, for cancel
--         remaining, reset_after_us             for each limit
-- A blind retry is safe but takes the cost again.
-- Needs Redis 6.2.

local reply = { now }
local opens = math.max(now, frozen_until)
local own, costs = {}, {}

for _ = 1, next_number() do
  local wait_us, who = next_number(), next_text()
  for i = 1, #limits do
    own[i], costs[i] = state_at(next_number(), i), next_number()
  end
  local at, held_by = first_instant(own, costs, opens, 'earliest', who)
  if held_by == 0 and opens > now then
    held_by = -1
  end

  -- What is ahead of now gets its own instant, within reach.
  local slot, granted = at, at == now
  if not granted and at - now <= wait_us then
    slot = first_instant(own, costs, at, 'spread', who)
    local reach = now + wait_us
    for i, limit in ipairs(limits) do
      if limit.algorithm.horizon then
        reach = math.min(reach, limit.algorithm.horizon(own[i], limit, now, costs[i], who) - 1)
      end
    end
    granted = slot <= reach
  end

  local head = #reply
  reply[head + 1] = granted and slot or at
  reply[head + 2] = granted and 1 or 0
  reply[head + 3] = held_by
  local use_by = 0
  for i = 1, #limits do
    local receipt_1, receipt_2 = 0, 0
    if granted then
      local limit, state = limits[i], own[i]
      receipt_1, receipt_2 = limit.algorithm.take(state, limit, costs[i], slot, now, who)
      state.changed = true
      local ends = limit.algorithm.use_by(state, limit, slot)
      if ends and (use_by == 0 or ends < use_by) then
        use_by = ends
      end
    end
    reply[head + 3 + 2 * i], reply[head + 4 + 2 * i] = receipt_1, receipt_2
  end
  reply[head + 4] = use_by
  report(reply, own)
end

return save() or reply
