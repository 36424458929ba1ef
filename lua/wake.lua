-- wake: says which tasks of a policy's waiting line are to be woken now, in order,
-- and when to ask again. It takes nothing from any limit: it wakes as many as the
-- limits' states say that may start until soon, less those that are about to ask.
--
-- KEYS[1]  freeze key
-- KEYS[2]  line key
-- ARGV     as fragments/line.lua says, then:
--   for each limit: its state key without a value
--   id             who asks
--   term_us        how long id is the only one to wake; 0 to let another do it
--   near_us        how long before its slot a task must have been woken, at least: it
--                  is more where tasks took longer to ask of late
--   reach_us       how far ahead slots are filled, so that not every slot costs a call
--   hold_us        how long a task holds a slot of a concurrency limit, on the average;
--                  0 if that is not known: then nobody is woken to stand by for one
--   most_standing  how many may stand by, at most
--   names of tasks that are gone
-- Reply now_us, 1 if id is the one to wake, next_us: when to ask again (if id is not
--       the one, when it may be; 0 for not before a signal), then for each task its
--       name (see fragments/line.lua)
-- Worst case: MOST_STEPS tasks woken or rows held, as many that were late; a name read
-- for each task that is about to ask.
-- A blind retry is safe: who was woken in vain is woken again.
-- Needs Redis 6.2.

-- How many tasks a call wakes, or rows it holds, at most; more are for the next call.
local MOST_STEPS = 500
-- Rows and lanes are read this many at a time.
local PAGE = 64
-- How much more than near_us those that take longer to ask are woken ahead, at most.
local MOST_NEAR = 4
-- How many of a row may fail to ask before it is held for that.
local MOST_SILENT = 3
-- Who holds a slot for longer than this leaves it empty for less than a hundredth of
-- that, until the next one is woken.
local LONG_US = 10000000

local state_keys, has_slots = {}, false
for i = 1, #limits do
  state_keys[i], has_slots = next_text(), has_slots or limits[i].algorithm.hand
end
local id, term_us, near_us, reach_us = next_text(), next_number(), next_number(), next_number()
local hold_us, most_standing = next_number(), next_number()

near_us = math.max(near_us, math.min(MOST_NEAR * near_us, 1.5 * line.lag))
local opens, till = math.max(now, frozen_until), now + near_us + reach_us
-- After how long a woken task is taken not to ask.
local silent_us = 2 * near_us

if line.leader ~= id and line.leader ~= '' and line.term > now then
  return { now, 0, line.term }
elseif not line.is_there then
  return { now, 1, 0 }
end
line.leader, line.term = id, now + term_us
if term_us == 0 then
  line.leader = ''
  line.save()
  redis.call('PUBLISH', line_key('signal'), '')
  return { now, 0, now }
end

local reply, next_at = { now, 1, 0 }, now + 1000000
local steps = 0
local changes = { woken = {}, asking = {}, late = {}, in_time = {}, held = {}, ready = {}, passed = {} }

local function ask_again(at)
  next_at = math.min(next_at, math.max(now, at))
end

local function wake_up(name)
  steps = steps + 1
  reply[#reply + 1] = name
end

-- The state key of a limit for a row.
local function key_of(i, row)
  local value = row.values[limits[i].value] or ''
  return value == '' and state_keys[i] or state_keys[i] .. ':' .. value
end

-- What those will take who are about to ask, by state keys.
local claimed = {}
local is_awake = {}

local function claim(row, costs)
  for i, limit in ipairs(limits) do
    if costs[i] <= limit.capacity then
      local key = key_of(i, row)
      claimed[key] = (claimed[key] or 0) + costs[i]
    end
  end
end

-- Takes those out of line that are not there any more.
local function forget(name)
  local row, member = parse_name(name)
  redis.call('ZREM', row.key, member)
  changes.asking[#changes.asking + 1], changes.in_time[#changes.in_time + 1] = name, name
end

-- One that stood by gives no sign of life.
local function step_down(name, row, member)
  local costs = parse_member(member)
  for i, limit in ipairs(limits) do
    if limit.algorithm.hand then
      redis.call('ZREM', line_key('standing', key_of(i, row)), standing_member(i, row, costs, name))
    end
  end
end

-- How long a row of which so many did not ask is left alone.
local function rest_us(row)
  return silent_us * 2 ^ math.min(row.silence, 6)
end

-- Those that did not ask in time are woken again: it may be the wake that was lost. Until
-- they ask, or may be woken once more, they count for nothing.
local function look_after_late()
  local silent = redis.call('ZRANGEBYSCORE', line_key('woken'), '-inf', int(now - silent_us), 'LIMIT', 0, MOST_STEPS)
  local late = redis.call('ZRANGEBYSCORE', line_key('late'), '-inf', int(now), 'LIMIT', 0, MOST_STEPS - #silent)
  local list = {}
  for i, name in ipairs(silent) do
    list[i] = { name = name, row = (parse_name(name)) }
  end
  for _, name in ipairs(late) do
    list[#list + 1] = { name = name }
    list[#list].row, list[#list].member = parse_name(name)
  end
  local unread = {}
  for _, one in ipairs(list) do
    if not one.row.cursor then
      one.row.cursor, unread[#unread + 1] = 0, one.row
    end
  end
  read_cursors(unread)
  for i, one in ipairs(list) do
    if i <= #silent then
      one.row.silence, one.row.is_changed = one.row.silence + 1, true
      changes.asking[#changes.asking + 1] = one.name
    else
      step_down(one.name, one.row, one.member)
    end
    changes.late[2 * i - 1], changes.late[2 * i] = int(now + rest_us(one.row)), one.name
    wake_up(one.name)
  end
  local first = redis.call('ZRANGE', line_key('late'), #late, #late, 'WITHSCORES')[2]
  ask_again(tonumber(first or next_at))
  local names = redis.call('ZRANGE', line_key('woken'), #silent, -1, 'WITHSCORES')
  for i = 1, #names, 2 do
    local row, member = parse_name(names[i])
    is_awake[names[i]] = true
    claim(row, (parse_member(member)))
  end
  ask_again(tonumber(names[2] or next_at) + silent_us)
  return #silent + #late
end

-- The states of limits, by their keys, and how many stand by there.
local states, standing, all_standing = {}, {}, 0

local function state_for(limit, key)
  if not states[key] then
    states[key] = limit.algorithm.load(redis.call('MGET', key)[1], limit, now, key)
    if limit.algorithm.hand then
      standing[key] = redis.call('ZCARD', line_key('standing', key))
      all_standing = all_standing + standing[key]
    end
  end
  return states[key]
end

-- How many may stand by for slots of a limit: as many as will be free by the time
-- that others could be there.
local function most_at(limit)
  if hold_us == 0 or hold_us > LONG_US then
    return 0
  end
  return math.ceil(limit.count * (near_us + reach_us) / hold_us)
end

-- When those who stand by for slots of a limit are to be looked at: when a quarter of
-- them has gone.
local function look_again_us(limit)
  return math.max(reach_us, most_at(limit) * hold_us / limit.count / 4)
end

-- Whether one more may be woken to stand by for a slot.
local function may_stand(limit, key)
  local beyond = standing[key] + (claimed[key] or 0) - limit.algorithm.free(states[key], limit)
  if beyond >= most_at(limit) or beyond >= 0 and all_standing + (claimed[key] or 0) >= most_standing then
    return false
  end
  ask_again(now + look_again_us(limit))
  return true
end

-- The first instant at which the limits let a task of a row start after all that is
-- claimed: those that count for its row alone, or those that all share. Where a slot is
-- lacking that is never, for all that is known; then also the limit.
local function due_at(row, costs, shared)
  local at = opens
  for i, limit in ipairs(limits) do
    if (limit.value == 0) == shared and costs[i] <= limit.capacity then
      local key = key_of(i, row)
      local state = state_for(limit, key)
      local due = limit.algorithm.due(state, limit, (claimed[key] or 0) + costs[i] + (standing[key] or 0),
        kept and not row.urgent and kept[i] or 0, now)
      if due == math.huge and not may_stand(limit, key) then
        return due, i, key
      elseif due < math.huge then
        at = math.max(at, due)
      end
    end
  end
  return at
end

-- The first tasks of a row that are not awake, read page by page.
local function next_of(row)
  while true do
    if not row.page or row.at > #row.page then
      if row.is_read then
        return nil
      end
      local size = row.page and PAGE or 4
      row.page = redis.call('ZRANGEBYSCORE', row.key, '(' .. int(row.cursor), '+inf', 'WITHSCORES', 'LIMIT', 0, size)
      row.at, row.is_read = 1, #row.page < 2 * size
    end
    local member = row.page[row.at]
    if not member or not is_awake[name_of(row, member)] then
      return member, tonumber(row.page[row.at + 1])
    end
    row.cursor, row.at, row.is_changed = tonumber(row.page[row.at + 1]), row.at + 2, true
  end
end

-- Lanes, by their tags, read page by page; and the rows of each, by the age of their
-- heads.
local lanes, lanes_read, read_to, lanes_left, lists = {}, 0, nil, true, {}

local function insert_lane(name, tag)
  local place = #lanes + 1
  while place > 1 and lanes[place - 1].tag > tag do
    place = place - 1
  end
  table.insert(lanes, place, { name = name, tag = tag })
end

local function read_lanes()
  while lanes_left and (#lanes == 0 or lanes_read > 0 and lanes[1].tag > read_to) do
    local page = redis.call('ZRANGE', line_key('ready'), int(lanes_read), int(lanes_read + PAGE - 1), 'WITHSCORES')
    for i = 1, #page, 2 do
      read_to = tonumber(page[i + 1])
      insert_lane(page[i], read_to)
    end
    lanes_read, lanes_left = lanes_read + #page / 2, #page == 2 * PAGE
  end
end

local function list_of(lane)
  local list = lists[lane]
  if not list then
    list = { key = line_key('rows', lane), removed = {}, moved = {} }
    local page = redis.call('ZRANGE', list.key, 0, PAGE - 1, 'WITHSCORES')
    local unread = {}
    for i = 1, #page, 2 do
      local row = row_named(page[i])
      list[#list + 1], row.head = row, tonumber(page[i + 1])
      if not row.cursor then
        unread[#unread + 1] = row
      end
    end
    read_cursors(unread)
    list.more = #page == 2 * PAGE
    lists[lane] = list
  end
  return list
end

-- Takes the first row out of a list.
local function remove_first(list)
  local row = table.remove(list, 1)
  list.removed[#list.removed + 1], list.moved[row.name] = row.name, nil
  return row
end

-- Puts the first row where it belongs by its new head.
local function move_first(list, head)
  local row, place = table.remove(list, 1), #list + 1
  row.head = head
  while place > 1 and list[place - 1].head > head do
    place = place - 1
  end
  table.insert(list, place, row)
  list.moved[row.name] = head
end

local function hold(list, at)
  local row = remove_first(list)
  steps = steps + 1
  changes.held[#changes.held + 1], changes.held[#changes.held + 2] = int(math.max(at, till + 1)), row.name
  ask_again(math.max(now + reach_us, at - near_us))
  return row
end

-- Held rows whose time has come join their lanes.
local function let_held_rows_join()
  local names = redis.call('ZRANGEBYSCORE', line_key('held'), '-inf', int(till), 'LIMIT', 0, MOST_STEPS)
  if #names == 0 then
    return
  end
  redis.call('ZREM', line_key('held'), unpack(names))
  local unread, lanes_of_rows = {}, {}
  for _, name in ipairs(names) do
    local row = row_named(name)
    if not row.cursor then
      unread[#unread + 1] = row
    end
  end
  read_cursors(unread)
  for _, name in ipairs(names) do
    local row = rows[name]
    local member, place = next_of(row)
    local lane = kept and row.urgent and URGENT_LANE or row.lane
    if member then
      change('ZADD', line_key('rows', lane), { int(place), name })
      lanes_of_rows[lane] = true
    else
      row.is_changed, row.is_listed = row.is_changed or row.is_listed, false
    end
  end
  local arguments = { 'GT' }
  for lane in pairs(lanes_of_rows) do
    arguments[#arguments + 1], arguments[#arguments + 2] = tag_text(lane == URGENT_LANE and 0 or line.virtual), lane
  end
  if #arguments > 1 then
    change('ZADD', line_key('ready'), arguments)
  end
  if #names == MOST_STEPS then
    ask_again(now)
  end
end

-- Wakes the first task of a row.
local function wake_first(lane, row, member, place, costs)
  claim(row, costs)
  local name = name_of(row, member)
  changes.woken[#changes.woken + 1], changes.woken[#changes.woken + 2] = int(now + steps), name
  wake_up(name)
  is_awake[name], line.count = true, line.count - 1
  row.cursor, row.at, row.is_changed = place, row.at + 2, true
  local share = share_of(costs, row.weight)
  if lane.name == URGENT_LANE then
    local tag = tonumber(redis.call('ZSCORE', line_key('ready'), row.lane) or 0)
    change('ZADD', line_key('ready'), { tag_text(math.max(tag, line.virtual) + share), row.lane })
  else
    line.virtual = math.max(line.virtual, lane.tag)
    lane.tag = line.virtual + share
  end
end

-- Serves the first row of a lane: its first task is woken, or the row is held, or all
-- have to wait for what they share. Returns whether to go on.
local function serve(lane, list)
  local row = list[1]
  local member, place = next_of(row)
  if not member then
    remove_first(list)
    row.is_changed, row.is_listed = row.is_changed or row.is_listed, false
    return true
  end
  local costs = parse_member(member)
  local at, lacks, key = due_at(row, costs, false)
  if at > till and opens <= till then
    if lacks then
      at = till + (standing[key] > 0 and look_again_us(limits[lacks]) or 1000000)
      change('ZADD', line_key('lacking', key), { tag_text(lane.tag), row.name })
    end
    hold(list, at)
    return true
  end
  at, lacks, key = due_at(row, costs, true)
  if at > till then
    ask_again(lacks and standing[key] > 0 and now + look_again_us(limits[lacks]) or math.max(now + reach_us, at - near_us))
    return false
  end
  wake_first(lane, row, member, place, costs)
  local left_over, head = next_of(row)
  if left_over and row.silence >= MOST_SILENT then
    hold(list, now + rest_us(row))
  elseif left_over then
    move_first(list, head)
  else
    remove_first(list)
    row.is_listed = false
  end
  return true
end

local function serve_lanes()
  local goes_on = true
  read_lanes()
  while goes_on and #lanes > 0 do
    if steps >= MOST_STEPS then
      ask_again(now)
      return
    end
    local lane = table.remove(lanes, 1)
    local list, tag = list_of(lane.name), lane.tag
    goes_on = not list[1] or serve(lane, list)
    if lane.tag ~= tag then
      changes.ready[lane.name] = lane.tag
    end
    if list[1] then
      insert_lane(lane.name, lane.tag)
    elseif list.more then
      ask_again(now)
    elseif not changes.ready[lane.name] then
      changes.passed[#changes.passed + 1] = lane.name
    end
    read_lanes()
  end
end

local function write_changes()
  for _, list in pairs(lists) do
    local moved = {}
    for name, head in pairs(list.moved) do
      moved[#moved + 1], moved[#moved + 2] = int(head), name
    end
    change('ZREM', list.key, list.removed)
    change('ZADD', list.key, moved)
  end
  local ready = {}
  for lane, tag in pairs(changes.ready) do
    ready[#ready + 1], ready[#ready + 2] = tag_text(tag), lane
  end
  change('ZADD', line_key('ready'), ready)
  change('ZREM', line_key('ready'), changes.passed)
  change('ZADD', line_key('held'), changes.held)
  change('ZREM', line_key('woken'), changes.asking)
  change('ZADD', line_key('woken'), changes.woken)
  change('ZREM', line_key('late'), changes.in_time)
  change('ZADD', line_key('late'), changes.late)
  write_cursors()
end

-- Who stands by beside a free slot, as there are more of them or a lease ran out, is woken.
local function call_standing()
  local seen = {}
  for _, name in ipairs(has_slots and redis.call('ZRANGE', line_key('late'), 0, -1) or {}) do
    local row = parse_name(name)
    for i, limit in ipairs(limits) do
      local key = limit.algorithm.hand and key_of(i, row)
      local free = key and not seen[key] and limit.algorithm.free(state_for(limit, key), limit) or 0
      seen[key or 0] = true
      for _, member in ipairs(free > 0 and redis.call('ZRANGE', line_key('standing', key), 0, free - 1) or {}) do
        wake_up(string.match(member, '/(.*)$'))
      end
    end
  end
end

for i = argument + 1, #ARGV do
  forget(ARGV[i])
end
look_after_late()
call_standing()
let_held_rows_join()
serve_lanes()
line.keep_until(now)
write_changes()
local first_held = redis.call('ZRANGE', line_key('held'), 0, 0, 'WITHSCORES')[2]
if not first_held and #lanes == 0 and line.recalled <= now
  and redis.call('EXISTS', line_key('ready'), line_key('woken'), line_key('late')) == 0 then
  -- Nobody is in line any more.
  redis.call('DEL', KEYS[2], line_key('cursors'), line_key('asked'), line_key('recalled'))
  line.list('SREM')
  return reply
end
if first_held then
  ask_again(math.max(now + reach_us, first_held - near_us))
end
line.wake_at = math.ceil(next_at)
line.save()
reply[3] = line.wake_at
return reply
