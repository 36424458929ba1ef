-- wake: says which tasks of a policy's waiting line are to be woken now, in order,
-- and when to ask again. It finds that out by letting copies of the limits' states
-- serve the tasks that were woken and have not asked yet, and then the line: it takes
-- nothing from any limit.
--
-- How is told in parts/wake_*.lua: rows, tickets, lanes, serve and write.
--
-- KEYS[1]  freeze key
-- KEYS[2]  line key
-- ARGV     as parts/policy.lua says, then as parts/line.lua does, then:
--   for each limit: its state key without a value
--   id             who asks
--   term_us        how long id is the only one to wake
--   near_us        how long before its slot a task must have been woken
--   reach_us       how far ahead slots are filled, so that not every slot costs a call
--   believe_us     when a task that was woken and did not ask is woken again, at first
--   hold_us        how long a task holds a slot of a concurrency limit, on the average;
--                  0 if that is not known: then nobody is woken to stand by for one
--   most_standing  how many may stand by, at most
-- Reply now_us, 1 if id is the one to wake, next_us: when to ask again (if id is not
--       the one, when it may be; 0 for not before a signal), then for each task its
--       member (see parts/line.lua)
-- A blind retry is safe: who was woken in vain is woken again.
-- Needs Redis 6.2.

for i = 1, #limits do
  waking.state_keys[i] = next_text()
end
local id, term_us = next_text(), next_number()
waking.near_us, waking.reach_us, waking.believe_us = next_number(), next_number(), next_number()
waking.hold_us, waking.most_standing = next_number(), next_number()
-- When the policy opens, and until when slots are filled.
waking.opens = math.max(now, frozen_until)
waking.reach = now + waking.near_us + waking.reach_us

local leader = redis.call('GET', line_key('leader'))
if leader and leader ~= id then
  return { now, 0, now + 1000 * math.max(1, redis.call('PTTL', line_key('leader'))) }
end
if not line.is_there then
  if leader then
    redis.call('DEL', line_key('leader'))
  end
  return { now, 1, 0 }
end
redis.call('SET', line_key('leader'), id, 'PX', int(ttl_ms(term_us)))

tickets.reckon()
let_held_rows_join()
serve_lanes()
serve_urgent_rows()
write_line()

return { now, 1, math.ceil(waking.next_at), unpack(waking.woken) }
