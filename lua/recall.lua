-- recall: has tasks ask anew that stand in a line which nobody serves any more, because
-- the policy has others stand in line by other attributes, or is gone. They are woken in
-- about their order.
--
-- KEYS[1]  the line's key (see parts/line.lua)
--          and with it its /cursors, /row:<row>, /ready, /rows:<lane>, /held, /woken, /late
--          and /asked, for which rows there are is only known from it
-- KEYS[2]  the list of the policy's lines
-- KEYS[3]  the key of the line that they are to find themselves in, and with it its
--          /recalled, if the policy is there: they have their old places in it, but no
--          other right to a slot than who comes just now
-- ARGV     id          who asks
--          believe_us  how long after their waking they may come
-- Reply as wake's; the second number is 0 if somebody serves the line. next_us is 0 if
--       nobody is in it any more
-- Worst case: MOST_WOKEN tasks. As many are read of each of MOST_ROWS rows, or of all rows
-- while the server keeps their hash compact, which is up to 512 by default.
-- A blind retry is safe: who was told of in a reply that was lost is in line no more, and
-- comes back when asynq's own time for it has come.
-- Needs Redis 6.2.

local MOST_WOKEN, MOST_ROWS = 128, 64
-- How soon to ask again: if there are more, and if enough are on their way.
local MORE_US, BUSY_US = 10000, 50000
-- As in parts/line.lua.
local KEPT_US, LISTED_MS = 24 * 3600 * 1000000, '2678400000'

local now = now_us()
local from, list, to = KEYS[1], KEYS[2], KEYS[3]
local id, believe_us = ARGV[1], ARGV[2] + 0

local meta = redis.call('GET', from) or ''
local term, leader = string.match(meta, ',(%d+),([^,]*)$')
if leader and leader ~= '' and leader ~= id and tonumber(term) > now then
  return { now, 0, tonumber(term) }
end
local most = MOST_WOKEN - (to and redis.call('ZCARD', to .. '/recalled') or 0)
if most <= 0 then
  return { now, 1, now + BUSY_US }
end

-- The first tasks of some rows, by their places.
local first, names = {}, redis.call('HSCAN', from .. '/cursors', 0, 'COUNT', MOST_ROWS)[2]
for i = 1, #names, 2 do
  local key = from .. '/row:' .. names[i]
  local page = redis.call('ZRANGE', key, 0, most - 1, 'WITHSCORES')
  for k = 1, #page, 2 do
    first[#first + 1] = { row = names[i], key = key, member = page[k], place = tonumber(page[k + 1]) }
  end
  if #page == 0 then
    redis.call('HDEL', from .. '/cursors', names[i])
  end
end
table.sort(first, function(a, b)
  return a.place < b.place
end)

local reply, places = { now, 1, now + MORE_US }, {}
for i = 1, math.min(most, #first) do
  local task = first[i]
  redis.call('ZREM', task.key, task.member)
  reply[#reply + 1] = #task.row .. '|' .. task.row .. task.member
  places[#places + 1], places[#places + 2] = int(task.place), string.match(task.member, '/(.*)$')
end
if to and #places > 0 then
  local till, before = int(now + believe_us), string.rep('[^,]+,', 6) -- as META of parts/line.lua has it
  local line = redis.call('GET', to) or '0.001,0,' .. int(now) .. ',0,' .. int(now + KEPT_US) .. ',0,0,0,0,0,'
  redis.call('SET', to, (string.gsub(line, '^(' .. before .. ')%d+', '%1' .. till)), 'PX', int(ttl_ms(KEPT_US)))
  redis.call('SADD', list, to)
  redis.call('PEXPIRE', list, LISTED_MS)
  redis.call('ZADD', to .. '/recalled', unpack(places))
  redis.call('PEXPIRE', to .. '/recalled', int(ttl_ms(believe_us)))
end
local lanes = #names == 0 and redis.call('ZPOPMIN', from .. '/ready', MOST_ROWS) or {}
for i = 1, #lanes, 2 do
  redis.call('DEL', from .. '/rows:' .. lanes[i])
end
if #names == 0 and #lanes == 0 then
  redis.call('DEL', from, from .. '/ready', from .. '/held', from .. '/woken', from .. '/late', from .. '/asked')
  redis.call('SREM', list, from)
  reply[3] = 0
end
return reply
