-- recall: has tasks ask anew that stand in a line which nobody serves any more, because
-- the policy has others stand in line by other attributes, or is gone. They are woken in
-- about their order, as fast as they ask.
--
-- KEYS[1]  the line's key (see parts/line.lua)
-- KEYS[2]  the list of the policy's lines
-- KEYS[3]  the key of the line that they are to find themselves in, if the policy is
--          there: they are expected to ask, and have their old places, but no other
--          right to a slot than who comes just now
-- ARGV     id          who asks
--          believe_us  when a task that did not ask is woken again
--          times       as how many times woken they count; see wake
-- Reply as wake's; the second number is 0 if somebody serves the line. next_us is 0 if
--       nobody is in it any more
-- A blind retry is safe: who was woken in vain is woken again, or comes back by itself.
-- Needs Redis 6.2.

-- Bounds of one call's work, and of those who are on their way.
local MOST_WOKEN, MOST_ROWS, MOST_EXPECTED = 128, 64, 128
-- How soon to ask again: if there are more, and if enough are on their way.
local MORE_US, BUSY_US = 10000, 50000
-- As in parts/line.lua.
local KEPT_US, LISTED_MS = 24 * 3600 * 1000000, '2678400000'

local now = now_us()
local from, list, to = KEYS[1], KEYS[2], KEYS[3]
local id, believe_us, times = ARGV[1], ARGV[2] + 0, ARGV[3]

local leader = redis.call('GET', from .. '/leader')
if leader == id then
  redis.call('DEL', from .. '/leader')
elseif leader then
  return { now, 0, now + 1000 * math.max(1, redis.call('PTTL', from .. '/leader')) }
end

-- The rows of the line, with their lanes: those of a lane that has but one are found by
-- its name.
local rows, known = {}, {}

local function add_row(name, lane)
  if not known[name] and #rows < MOST_ROWS then
    known[name] = true
    rows[#rows + 1] = { name = name, lane = lane, key = from .. '/row:' .. name, popped = {} }
  end
end

local lanes = redis.call('ZRANGE', from .. '/ready', 0, MOST_ROWS / 2)
for _, lane in ipairs(lanes) do
  for _, name in ipairs(redis.call('ZRANGE', from .. '/rows:' .. lane, 0, MOST_ROWS / 2)) do
    add_row(name, lane)
  end
  add_row(lane == '' and '' or #lane .. ':' .. lane .. ',', lane)
  add_row(#lane .. ':' .. lane .. ',', lane)
end
for _, name in ipairs(redis.call('ZRANGE', from .. '/held', 0, MOST_ROWS)) do
  add_row(name)
end

-- Who was woken before is on its way to where it asks now.
local expected = 0
local tickets = {}
local function expect(member, place)
  if to then
    tickets[#tickets + 1] = member
    tickets[#tickets + 1] = table.concat({ int(place), int(now + believe_us), times, '-1.000', int(place) }, ',') .. '/'
  end
end
local woken = redis.call('HGETALL', from .. '/woken')
for i = 1, #woken, 2 do
  expect(woken[i], tonumber(string.match(woken[i + 1], '^%d+')))
end
redis.call('DEL', from .. '/woken')
if to then
  expected = redis.call('HLEN', to .. '/woken') + #woken / 2
end

-- The first tasks of the rows, by their places.
local first = {}
local most = math.min(MOST_WOKEN, MOST_EXPECTED - expected)
if most > 0 then
  for _, row in ipairs(rows) do
    local page = redis.call('ZRANGE', row.key, 0, math.ceil(MOST_WOKEN / #rows), 'WITHSCORES')
    for i = 1, #page, 2 do
      first[#first + 1] = { member = page[i], place = tonumber(page[i + 1]), row = row }
    end
  end
  table.sort(first, function(a, b)
    return a.place < b.place
  end)
end
local reply = { now, 1, now + (most > 0 and MORE_US or BUSY_US) }
for i = 1, math.min(most, #first) do
  local task = first[i]
  task.row.popped[#task.row.popped + 1] = task.member
  expect(task.member, task.place)
  reply[#reply + 1] = task.member
end

-- Rows and lanes that are empty are forgotten.
local filled = {}
for _, row in ipairs(rows) do
  if #row.popped > 0 then
    redis.call('ZREM', row.key, unpack(row.popped))
  end
  if redis.call('EXISTS', row.key) == 0 then
    redis.call('ZREM', from .. '/held', row.name)
    if row.lane then
      redis.call('ZREM', from .. '/rows:' .. row.lane, row.name)
    end
  elseif row.lane then
    filled[row.lane] = true
  end
end
for _, lane in ipairs(lanes) do
  if not filled[lane] and redis.call('EXISTS', from .. '/rows:' .. lane) == 0 then
    redis.call('ZREM', from .. '/ready', lane)
  end
end

if #tickets > 0 then
  if redis.call('EXISTS', to) == 0 then
    redis.call('SET', to, '0.000,0,' .. int(now) .. ',' .. int(now + believe_us) .. ',' .. int(now + KEPT_US),
      'PX', int(ttl_ms(KEPT_US)))
    redis.call('SADD', list, to)
    redis.call('PEXPIRE', list, LISTED_MS)
  end
  redis.call('HSET', to .. '/woken', unpack(tickets))
  redis.call('PEXPIRE', to .. '/woken', int(ttl_ms(KEPT_US)))
  redis.call('PUBLISH', to .. '/signal', '')
end
if #rows == 0 then
  redis.call('DEL', from, from .. '/ready', from .. '/lanes', from .. '/held', from .. '/urgent', from .. '/weights',
    from .. '/asked')
  redis.call('SREM', list, from)
  reply[3] = 0
end
return reply
