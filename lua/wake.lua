-- wake: says which tasks of a policy's waiting line are to be woken now, in order,
-- and when to ask again. It finds that out by letting copies of the limits' states
-- serve the tasks that were woken and have not asked yet, and then the line: it takes
-- nothing from any limit.
--
-- KEYS[1]  freeze key
-- KEYS[2]  line key
-- ARGV     as fragments/line.lua says, then:
--   for each limit: its state key without a value
--   id          who asks
--   term_us     how long id is the only one to wake
--   near_us     how long before its slot a task must have been woken
--   reach_us    how far ahead slots are filled, so that not every slot costs a call
--   believe_us  when a task that was woken and did not ask is woken again, at first
-- Reply now_us, 1 if id is the one to wake, next_us: when to ask again (if id is not
--       the one, when it may be; 0 for not before a signal), then for each task its
--       member (see fragments/line.lua)
-- A blind retry is safe: who was woken in vain is woken again.
-- Needs Redis 6.2.

-- Bounds of one call's work: tasks woken, rows held, and tasks that were woken and
-- have not asked yet.
local MOST_WOKEN, MOST_HELD, MOST_EXPECTED = 128, 64, 256
-- How often a wake is repeated, each time after twice as long, before it is given up.
local MOST_REPEATS = 8
-- Rows and lanes are read this many at a time.
local PAGE = 64

local state_keys = {}
for i = 1, #limits do
  state_keys[i] = next_text()
end
local id, term_us = next_text(), next_number()
local near_us, reach_us, believe_us = next_number(), next_number(), next_number()

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

local opens = math.max(now, frozen_until)
local reach = now + near_us + reach_us
local all, own_keys = {}, {}
for i = 1, #limits do
  all[i] = i
  if limits[i].value > 0 then
    own_keys[#own_keys + 1] = i
  end
end

-- The states of a row's keys; rows that share a key share its state.
local copies, rows = {}, {}

local function key_of(i, values)
  local value = values[limits[i].value] or ''
  return value == '' and state_keys[i] or state_keys[i] .. ':' .. value
end

local function copy_of(i, values)
  local key = key_of(i, values)
  if not copies[key] then
    copies[key] = limits[i].algorithm.load(redis.call('MGET', key)[1], limits[i], now, key)
  end
  return copies[key]
end

local function row_named(name)
  local row = rows[name]
  if not row then
    row = { name = name, values = values_of(name), own = {}, key = line_key('row', name), popped = {}, page = {}, at = 1 }
    row.lane = line.has_lane and row.values[1] or ''
    for i = 1, #limits do
      row.own[i] = copy_of(i, row.values)
    end
    rows[name] = row
  end
  return row
end

local function take(places, own, costs, at, who)
  for _, i in ipairs(places) do
    if costs[i] <= limits[i].capacity then
      limits[i].algorithm.take(own[i], limits[i], costs[i], at, now, who)
    end
  end
end

local reply = { now, 1, 0 }
local next_at = now + 1000000

local function ask_again(at)
  next_at = math.min(next_at, math.max(now, at))
end

-- Those that were woken before: who has not asked in time is woken again, and who is
-- still believed to come gets its slot reckoned first. One that was woken twice may
-- be anywhere, and must not keep others from being woken.
local tickets, forgotten, expected = {}, {}, 0

local function write_ticket(member, ticket)
  tickets[#tickets + 1] = member
  tickets[#tickets + 1] = table.concat({ int(ticket.place), int(ticket.till), int(ticket.times),
    string.format('%.3f', ticket.share) }, ',') .. '/' .. ticket.row
end

local coming = {}
local woken = redis.call('HGETALL', line_key('woken'))
for i = 1, #woken, 2 do
  local member = woken[i]
  local place, till, times, share, row = string.match(woken[i + 1], '^(%d+),(%d+),(%d+),([^/]+)/(.*)$')
  local ticket = { member = member, place = tonumber(place), till = tonumber(till), times = tonumber(times),
    share = tonumber(share), row = row }
  expected = expected + 1
  if ticket.till <= now and #reply < MOST_WOKEN then
    ticket.times = ticket.times + 1
    if ticket.times > MOST_REPEATS then
      forgotten[#forgotten + 1] = member
    else
      ticket.till = now + believe_us * 2 ^ (ticket.times - 1)
      write_ticket(member, ticket)
      reply[#reply + 1] = member
    end
  end
  ask_again(ticket.till)
  if ticket.times == 1 then
    coming[#coming + 1] = ticket
  end
end
table.sort(coming, function(a, b)
  return a.place < b.place
end)
for _, ticket in ipairs(coming) do
  local row = row_named(ticket.row)
  local costs, who = parse_member(ticket.member)
  local asked = asked_for(costs, row.own, line.is_urgent(ticket.member), who)
  local at = paced_instant(all, row.own, asked, opens, who)
  if at < math.huge then
    take(all, row.own, costs, at, who)
  end
end

-- The lanes by their tags, as far as they were read, and for each its rows.
local lanes, lanes_read, lanes_left, read_to = {}, 0, true, nil
local lane_rows, tags, gone = {}, {}, {}

local function insert_lane(lane, tag)
  local place = #lanes + 1
  while place > 1 and lanes[place - 1].tag > tag do
    place = place - 1
  end
  table.insert(lanes, place, { name = lane, tag = tag })
end

local function read_lanes()
  while lanes_left and (#lanes == 0 or lanes_read > 0 and lanes[1].tag > read_to) do
    local page = redis.call('ZRANGE', line_key('ready'), int(lanes_read), int(lanes_read + PAGE - 1), 'WITHSCORES')
    for i = 1, #page, 2 do
      read_to = tonumber(page[i + 1])
      insert_lane(page[i], read_to)
    end
    lanes_read = lanes_read + #page / 2
    lanes_left = #page == 2 * PAGE
  end
end

local function insert_row(list, name, place)
  local at = #list + 1
  while at > 1 and list[at - 1].place > place do
    at = at - 1
  end
  table.insert(list, at, { name = name, place = place })
end

-- The rows of a lane that may be served, by the age of their heads.
local function rows_of(lane)
  local list = lane_rows[lane]
  if not list then
    list = { written = {}, removed = {} }
    if line.one_row then
      local name = line.has_lane and #lane .. ':' .. lane .. ',' or ''
      list[1] = { name = name, place = 0 }
    else
      local page = redis.call('ZRANGE', line_key('rows', lane), 0, PAGE - 1, 'WITHSCORES')
      for i = 1, #page, 2 do
        list[#list + 1] = { name = page[i], place = tonumber(page[i + 1]) }
      end
      list.more = #page == 2 * PAGE
    end
    lane_rows[lane] = list
  end
  return list
end

-- The first task of a row and its place, or nil.
local function head_of(row)
  local next_member = row.page[row.at]
  if not next_member and not row.is_read then
    local from = #row.popped
    local size = from == 0 and 4 or PAGE
    row.page = redis.call('ZRANGE', row.key, from, from + size - 1, 'WITHSCORES')
    row.at, row.is_read = 1, #row.page < 2 * size
    next_member = row.page[1]
  end
  return next_member, tonumber(row.page[row.at + 1])
end

-- A row is no more among those of its lane that may be served.
local function remove_row(list)
  local removed = table.remove(list, 1)
  list.removed[#list.removed + 1] = removed.name
  list.written[removed.name] = nil
end

-- Held rows whose time has come join their lanes again.
local ready_again = redis.call('ZRANGEBYSCORE', line_key('held'), '-inf', int(reach), 'LIMIT', 0, MOST_HELD)
if #ready_again > 0 then
  redis.call('ZREM', line_key('held'), unpack(ready_again))
  local arrivals, arrived = {}, {}
  for _, name in ipairs(ready_again) do
    local row = row_named(name)
    local member, place = head_of(row)
    if member then
      if not line.one_row then
        redis.call('ZADD', line_key('rows', row.lane), int(place), name)
      end
      if not arrived[row.lane] then
        arrived[row.lane] = true
        arrivals[#arrivals + 1] = row.lane
      end
    end
  end
  if #arrivals > 0 then
    local before = redis.call('ZMSCORE', line_key('lanes'), unpack(arrivals))
    local args = {}
    for i, lane in ipairs(arrivals) do
      args[#args + 1] = string.format('%.3f', math.max(line.virtual, tonumber(before[i] or 0)))
      args[#args + 1] = lane
    end
    redis.call('ZADD', line_key('ready'), 'NX', unpack(args))
    redis.call('ZREM', line_key('lanes'), unpack(arrivals))
  end
end

local weights, any_weights = {}, redis.call('EXISTS', line_key('weights')) == 1
local function weight_of(lane)
  if not weights[lane] then
    weights[lane] = any_weights and tonumber(redis.call('HGET', line_key('weights'), lane) or 1) or 1
  end
  return weights[lane]
end

local held, more_rows = {}, false

-- Wakes the first task of a row, which has its slot at that instant.
local function wake_first(lane, row, member, place, costs, at, who)
  take(all, row.own, costs, at, who)
  local share = share_of(costs, weight_of(lane.name))
  lane.tag = math.max(line.virtual, lane.tag) + share
  tags[lane.name] = lane.tag
  row.popped[#row.popped + 1] = member
  row.at = row.at + 2
  write_ticket(member, { place = place, till = at + believe_us, times = 1, share = share, row = row.name })
  reply[#reply + 1] = member
  expected, line.count = expected + 1, math.max(0, line.count - 1)
  ask_again(at + believe_us)
end

-- The next task is asked for its slot: woken, or held with its row, or all have to
-- wait for what they share. Returns whether to go on.
local function serve(lane, list, row, member, place)
  local costs, who = parse_member(member)
  local asked = asked_for(costs, row.own, line.is_urgent(member), who)
  local at, look_at, lacks = paced_instant(own_keys, row.own, asked, opens, who)
  if at > reach and opens <= reach then
    if at < math.huge then
      take(own_keys, row.own, costs, at, who)
    else
      look_at = math.max(look_at, reach + 1000000)
      local lacking = line_key('lacking', key_of(lacks, row.values))
      redis.call('ZADD', lacking, string.format('%.3f', lane.tag), row.name)
      line.keep(lacking)
    end
    held[#held + 1], held[#held + 2] = int(look_at), row.name
    remove_row(list)
    return #held < 2 * MOST_HELD
  end
  at, look_at = paced_instant(all, row.own, asked, math.max(opens, math.min(at, reach)), who)
  if at > reach then
    ask_again(math.max(now + reach_us, look_at - near_us))
    return false
  end
  line.virtual = math.max(line.virtual, lane.tag)
  wake_first(lane, row, member, place, costs, at, who)
  return true
end

read_lanes()
while #lanes > 0 do
  if #reply >= MOST_WOKEN or expected >= MOST_EXPECTED then
    ask_again(now + (expected >= MOST_EXPECTED and near_us or 0))
    break
  end
  local lane = table.remove(lanes, 1)
  local list = rows_of(lane.name)
  local first = list[1]
  local goes_on = true
  if first then
    local row = row_named(first.name)
    local member, place = head_of(row)
    if not member then
      remove_row(list)
    else
      goes_on = serve(lane, list, row, member, place)
      if list[1] == first and row.page[row.at] == nil and not head_of(row) then
        remove_row(list)
      elseif list[1] == first and not line.one_row then
        local _, now_first = head_of(row)
        table.remove(list, 1)
        insert_row(list, first.name, now_first)
        list.written[first.name] = now_first
      end
    end
  end
  if list[1] then
    insert_lane(lane.name, lane.tag)
  elseif list.more then
    more_rows = true -- which the next call sees
    tags[lane.name] = lane.tag
    ask_again(now)
  else
    gone[#gone + 1] = lane.name
    tags[lane.name] = lane.tag
  end
  if not goes_on then
    break
  end
  read_lanes()
end

local is_gone = {}
for _, lane in ipairs(gone) do
  is_gone[lane] = true
end

-- The urgent tasks of rows are served out of their lanes' turn, from what is kept for
-- them.
if kept then
  local MOST_ROWS = 16

  local function serve_urgent(row)
    local tag = tags[row.lane] or redis.call('ZSCORE', line_key('ready'), row.lane)
    if not tag or is_gone[row.lane] then
      return
    end
    local lane = { name = row.lane, tag = tonumber(tag) }
    while #reply < MOST_WOKEN do
      local member, place = head_of(row)
      if not member or not line.is_urgent(member) then
        redis.call('ZREM', line_key('urgent'), row.name)
        return
      end
      local costs, who = parse_member(member)
      local at, look_at = paced_instant(all, row.own, costs, opens, who)
      if at > reach then
        ask_again(math.max(now + reach_us, look_at - near_us))
        return
      end
      wake_first(lane, row, member, place, costs, at, who)
    end
  end

  for _, name in ipairs(redis.call('ZRANGE', line_key('urgent'), 0, MOST_ROWS - 1)) do
    serve_urgent(row_named(name))
  end
end

-- Writes what was changed, key by key.
local function write(command, key, args)
  if #args > 0 then
    redis.call(command, key, unpack(args))
    if command ~= 'ZREM' and command ~= 'HDEL' then
      line.keep(key)
    end
  end
end

for _, row in pairs(rows) do
  write('ZREM', row.key, row.popped)
end
for lane, list in pairs(lane_rows) do
  if not line.one_row then
    local args = {}
    for name, place in pairs(list.written) do
      args[#args + 1], args[#args + 2] = int(place), name
    end
    write('ZREM', line_key('rows', lane), list.removed)
    write('ZADD', line_key('rows', lane), args)
  end
end
local ready, other = {}, {}
for lane, tag in pairs(tags) do
  local args = is_gone[lane] and other or ready
  args[#args + 1], args[#args + 2] = string.format('%.3f', tag), lane
end
write('ZREM', line_key('ready'), gone)
write('ZADD', line_key('ready'), ready)
write('ZADD', line_key('lanes'), other)
write('ZADD', line_key('held'), held)
write('HSET', line_key('woken'), tickets)
write('HDEL', line_key('woken'), forgotten)

local first_held = redis.call('ZRANGE', line_key('held'), 0, 0, 'WITHSCORES')
if first_held[2] then
  ask_again(math.max(now + reach_us / 2, tonumber(first_held[2]) - near_us))
elseif #lanes == 0 and not lanes_left and not more_rows and expected - #forgotten == 0 then
  -- Nobody is in line any more.
  redis.call('DEL', KEYS[2], line_key('ready'), line_key('lanes'), line_key('urgent'), line_key('weights'),
    line_key('asked'), line_key('leader'))
  line.list('SREM')
  return reply
end
redis.call('ZREMRANGEBYSCORE', line_key('lanes'), '-inf', string.format('%.3f', line.virtual))
line.wake_at = next_at
line.save()
reply[3] = math.ceil(next_at)
return reply
