-- reconcile: corrects what is known of an upstream's quota by what one response
-- says, for everybody; and ends the flight of the call that it answers.
--
-- KEYS  as parts/policy.lua says, for one request; the policy has only what is
--       kept about the upstream. Last where the call is marked as made
-- ARGV  as parts/policy.lua says, then:
--         ends        1 if it ends a flight, which it does once; or else 0
--         freeze_us     closes the whole policy for that long; 0 leaves it
--         age_us        how long ago the response came
--         sent_us       how long ago the request was sent
--         slot_us, is_used       of the call; is_used 1 if it may have been counted
--                                without a response that says so
--       and for each limit:
--         cost, epoch   what reserve took for the call (receipt_1); 0 for nothing
--         kind, limit, remaining, ends_us, left_us, window_us
--                       what the response said of the quota, kind 0 for nothing:
--                       when it resets by the upstream's clock, and how long after
--                       the response
--         close_us      closes this key for that long; -1 opens it; 0 leaves it
--         is_slow       1 to cut the rate
-- Reply now_us, then for each limit: what became of it (0 nothing to hear, 1 heard,
--       2 stale), and the tokens of a full quota (0 if not known)
-- Worst case: one read of all keys; one write for each limit, one of the freeze and one of
-- the mark.
-- A blind retry is safe: that a flight ended, changes nothing again and gets the same reply,
-- for MARKED_MS. What ends no flight is heard again, which tightens nothing further but
-- what is closed: that ends as much later as the call came later.
-- Needs Redis 6.2.

-- Longer than a client repeats a call.
local MARKED_MS = '60000'

local ends = next_number() == 1
if ends and raw[#KEYS] then
  local reply = {}
  for number in string.gmatch(raw[#KEYS], '%d+') do
    reply[#reply + 1] = tonumber(number)
  end
  return reply
end
local freeze_us, age_us, sent_us, slot, is_used =
  next_number(), next_number(), next_number(), next_number(), next_number()
local reply = { now }
local own = states_of(1)
for i, limit in ipairs(limits) do
  local state = own[i]
  local said = { slot = slot, is_used = is_used == 1, sent_us = now - sent_us }
  said.cost, said.epoch = next_number(), next_number()
  said.kind, said.limit, said.remaining = next_number(), next_number(), next_number()
  said.ends_us, said.until_us, said.window_us = next_number(), now - age_us + next_number(), next_number()
  said.close_us, said.is_slow = next_number(), next_number() == 1
  reply[2 * i] = limit.algorithm.hear(state, limit, said, now)
  reply[2 * i + 1] = state.quota or 0
  state.changed = true
end

local refused = save()
if refused then
  return refused
end
if freeze_us > 0 then
  local till = math.max(frozen_until, now + freeze_us)
  redis.call('SET', KEYS[1], int(till), 'PX', int(math.max(1, ttl_ms(till - now))))
end
if ends then
  redis.call('SET', KEYS[#KEYS], string.format('%d' .. string.rep('/%d', #reply - 1), unpack(reply)), 'PX', MARKED_MS)
end
return reply
