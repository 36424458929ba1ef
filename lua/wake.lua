-- wake: says which tasks of a policy's waiting line are to be woken now, in order,
-- and when to ask again. It takes nothing from any limit: it wakes as many as the
-- limits' states say that may start until soon, less those that are about to ask.
--
-- KEYS[1]  freeze key
-- KEYS[2]  line key
-- ARGV     as parts/policy.lua says, then as parts/line.lua does, then:
--   for each limit: its state key without a value. The keys of rows are made of it, for
--                  which rows there are is only known from the line
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
--       name (see parts/line.lua)
-- Worst case: MOST_STEPS tasks woken or rows held, after as many each that did not ask, that
-- were late, and rows that are held no more. For each row three reads; a PAGE of rows for
-- each lane; and the names of all that are about to ask or late, which are no more than
-- what the limits let start within 2 x near_us, and what did not ask.
-- A blind retry is safe: who was woken in vain is woken again.
-- Needs Redis 6.2.

-- How many tasks a call wakes, or rows it holds, at most; more are for the next call.
local MOST_STEPS = 500
-- Rows and lanes are read this many at a time.
local PAGE = 64
-- How much more than near_us those that take longer to ask are woken ahead, at most.
local MOST_NEAR = 4
-- How often in a row tasks of a row may fail to ask before it is held for that.
local MOST_SILENT = 1
-- Who holds a slot for longer than this leaves it empty for less than a hundredth of
-- that, until the next one is woken.
local LONG_US = 10000000

local state_keys = {}
for i = 1, #limits do
  state_keys[i] = next_text()
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
  redis.pcall('PUBLISH', line_key('signal'), '')
  return { now, 0, now }
end

local reply, next_at, steps = { now, 1, 0 }, now + 1000000, 0
-- What is written at the end: members with their scores, or without.
local woken, held, tags, passed = {}, {}, {}, {}

local function ask_again(at)
  next_at = math.min(next_at, math.max(now, at))
end

local function wake_up(name)
  steps, reply[#reply + 1] = steps + 1, name
end

-- The state key of a limit for a row.
local function key_of(i, row)
  local value = row.values[limits[i].value] or ''
  return value == '' and state_keys[i] or state_keys[i] .. ':' .. value
end

-- What those will take who are about to ask, by state keys; and who they are.
local claimed, is_awake = {}, {}

local function claim(name, row, member)
  is_awake[name] = true
  for i, cost in ipairs((parse_member(member))) do
    if cost <= limits[i].capacity then
      local key = key_of(i, row)
      claimed[key] = (claimed[key] or 0) + cost
    end
  end
end

-- How long a row of which so many did not ask is left alone.
local function rest_us(row)
  return silent_us * 2 ^ math.min(row.silence, 6)
end

-- A task that did not ask in time is woken again: it may be the wake that was lost. Until
-- it asks it counts for nothing.
local function wake_again(kind, name)
  local row = parse_name(name)
  if kind == 'woken' then
    redis.call('ZREM', line_key('woken'), name)
    if not row.is_silent then -- once in a call, however many of them
      know(row).silence, row.is_silent, row.is_changed = know(row).silence + 1, true, true
    end
  end
  change('ZADD', line_key('late'), { int(now + rest_us(know(row))), name })
  wake_up(name)
end

local function look_after_late()
  for kind, till in pairs({ woken = now - silent_us, late = now }) do
    for _, name in ipairs(redis.call('ZRANGEBYSCORE', line_key(kind), '-inf', int(till), 'LIMIT', 0, MOST_STEPS)) do
      wake_again(kind, name)
    end
  end
  ask_again(tonumber(redis.call('ZRANGE', line_key('late'), 0, 0, 'WITHSCORES')[2] or next_at))
  local names = redis.call('ZRANGE', line_key('woken'), 0, -1, 'WITHSCORES')
  ask_again(tonumber(names[2] or next_at) + silent_us)
  for i = 1, #names, 2 do
    claim(names[i], parse_name(names[i]))
  end
end

-- The states of limits, by their keys, and how many stand by there.
local states, standing, all_standing = {}, {}, 0

local function state_for(limit, key)
  if not states[key] then
    states[key] = load_state(redis.call('MGET', key)[1], limit, key)
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
  return hold_us > 0 and hold_us <= LONG_US and math.ceil(limit.count * (near_us + reach_us) / hold_us) or 0
end

-- When those who stand by for slots of a limit are to be looked at: when a third of
-- them has gone.
local function look_again_us(limit)
  return math.max(reach_us, most_at(limit) * hold_us / limit.count / 3)
end

-- Whether one more may be woken to stand by for a slot, beside those that are kept.
local function may_stand(limit, key, keep)
  local coming = claimed[key] or 0
  local beyond = standing[key] + coming - math.max(0, limit.algorithm.free(states[key], limit, now) - keep)
  if beyond >= most_at(limit) or beyond >= 0 and all_standing + coming >= most_standing then
    return false
  end
  ask_again(now + look_again_us(limit))
  return true
end

-- The first instant at which the limits let a task of a row start after all that is
-- claimed: those that count for its row alone, or those that all share. Where a slot is
-- lacking that is never, for all that is known; then also the limit, and its key.
local function due_at(row, costs, shared)
  local at = opens
  for i, limit in ipairs(limits) do
    if (limit.value == 0) == shared and costs[i] <= limit.capacity then
      local key = key_of(i, row)
      local keep, tokens = row.urgent and 0 or limit.kept, (claimed[key] or 0) + costs[i] + (standing[key] or 0)
      local due = limit.algorithm.due(state_for(limit, key), limit, tokens, keep, now, costs[i])
      if due < math.huge then
        at = math.max(at, due)
      elseif not may_stand(limit, key, keep) then
        return due, limit, key
      end
    end
  end
  return at
end

-- The first task of a row that is not awake, and its place.
local function next_of(row)
  repeat
    if not row.page or row.at > #row.page then
      local size = row.page and PAGE or 12
      if row.page and #row.page < 24 then
        return nil
      end
      row.page = redis.call('ZRANGEBYSCORE', row.key, '(' .. int(know(row).cursor), '+inf', 'WITHSCORES', 'LIMIT', 0, size)
      row.at = 1
    end
    local member, place = row.page[row.at], tonumber(row.page[row.at + 1] or nil)
    if member and is_awake[name_of(row, member)] then
      row.cursor, row.at, row.is_changed = place, row.at + 2, true
    elseif member or #row.page == 0 then
      return member, place
    end
  until false
end

-- Puts something into a list that is sorted by a field.
local function insert(list, one, field)
  local place = #list + 1
  while place > 1 and list[place - 1][field] > one[field] do
    place = place - 1
  end
  table.insert(list, place, one)
end

-- The rows of a lane, by the age of their heads.
local lists = {}

local function list_of(lane)
  local list = lists[lane] or { key = line_key('rows', lane), removed = {}, moved = {} }
  if not lists[lane] then
    local page = redis.call('ZRANGE', list.key, 0, PAGE - 1, 'WITHSCORES')
    for i = 1, #page, 2 do
      list[#list + 1] = know(row_named(page[i]))
      list[#list].head = tonumber(page[i + 1])
    end
    list.has_more, lists[lane] = #page == 2 * PAGE, list
  end
  return list
end

-- Takes the first row out of a list: for good, or until it is looked at, or to where it
-- belongs by its new head.
local function remove_first(list)
  local row = table.remove(list, 1)
  list.removed[#list.removed + 1], list.moved[row.name] = row.name, nil
  row.is_changed, row.is_listed = row.is_changed or row.is_listed, false
  return row
end

local function hold_first(list, at)
  local row = remove_first(list)
  row.is_listed, steps = true, steps + 1
  held[#held + 1], held[#held + 2] = int(math.max(at, till + 1)), row.name
end

local function move_first(list, head)
  local row = table.remove(list, 1)
  row.head, list.moved[row.name] = head, head
  insert(list, row, 'head')
end

-- Held rows whose time has come join their lanes, by where they were.
local function let_held_rows_join()
  local names = redis.call('ZRANGEBYSCORE', line_key('held'), '-inf', int(till), 'LIMIT', 0, MOST_STEPS)
  for _, name in ipairs(names) do
    list_row(know(row_named(name)), rows[name].cursor)
  end
  change('ZREM', line_key('held'), names)
  if #names == MOST_STEPS then
    ask_again(now)
  end
end

-- Wakes the first task of a row, which pays for its share.
local function wake_first(lane, row, member, place)
  local name = name_of(row, member)
  claim(name, row, member)
  woken[#woken + 1], woken[#woken + 2] = int(now + steps), name
  wake_up(name)
  line.count = line.count - 1
  row.cursor, row.at, row.is_changed = place, row.at + 2, true
  local share = share_of(parse_member(member), row.weight)
  if lane.name == URGENT_LANE then
    local tag = tonumber(redis.call('ZSCORE', line_key('ready'), row.lane) or 0)
    change('ZADD', line_key('ready'), { tag_text(math.max(tag, line.virtual) + share), row.lane })
  else
    line.virtual = math.max(line.virtual, lane.tag)
    lane.tag = line.virtual + share
    tags[lane.name] = lane.tag
  end
end

-- Serves the first row of a lane: its first task is woken, or the row is held, or all
-- have to wait for what they share. Returns whether to go on.
local function serve(lane, list)
  local row = list[1]
  local member, place = next_of(row)
  if not member then
    remove_first(list)
    return true
  elseif list[2] and place > list[2].head then
    move_first(list, place)
    return true
  end
  local costs = parse_member(member)
  local at, limit, key = due_at(row, costs, false)
  if at > till and opens <= till then
    if limit then
      at = till + (standing[key] > 0 and look_again_us(limit) or 1000000)
      change('ZADD', line_key('lacking', key), { tag_text(lane.tag), row.name })
    end
    hold_first(list, at)
    return true
  end
  at, limit, key = due_at(row, costs, true)
  if at > till then
    ask_again(limit and standing[key] > 0 and now + look_again_us(limit) or math.max(now + reach_us, at - near_us))
    return false
  end
  wake_first(lane, row, member, place)
  local left_over, head = next_of(row)
  if not left_over then
    remove_first(list)
  elseif row.silence >= MOST_SILENT then
    hold_first(list, now + rest_us(row))
  else
    move_first(list, head)
  end
  return true
end

-- Serves lanes by their tags, as far as one page of them reaches.
local function serve_lanes()
  local lanes = {}
  local page = redis.call('ZRANGE', line_key('ready'), 0, MOST_STEPS - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    lanes[#lanes + 1] = { name = page[i], tag = tonumber(page[i + 1]) }
  end
  local last = #lanes == MOST_STEPS and lanes[#lanes].tag or math.huge
  local goes_on = true
  while goes_on and lanes[1] do
    if steps >= MOST_STEPS or lanes[1].tag > last then
      ask_again(now)
      return
    end
    local lane = table.remove(lanes, 1)
    local list = list_of(lane.name)
    goes_on = not list[1] or serve(lane, list)
    if list[1] then
      insert(lanes, lane, 'tag')
    elseif list.has_more then
      ask_again(now)
    elseif not tags[lane.name] then
      passed[#passed + 1] = lane.name
    end
  end
end

-- A table of scores as arguments.
local function pairs_of(scores, text)
  local arguments = {}
  for member, score in pairs(scores) do
    arguments[#arguments + 1], arguments[#arguments + 2] = text(score), member
  end
  return arguments
end

-- Those who are gone leave.
for i = argument + 1, #ARGV do
  local row, member = parse_name(ARGV[i])
  redis.call('ZREM', row.key, member)
  redis.call('ZREM', line_key('woken'), ARGV[i])
  redis.call('ZREM', line_key('late'), ARGV[i])
end
line.keep_until(now)
look_after_late()
let_held_rows_join()
serve_lanes()
for _, list in pairs(lists) do
  change('ZREM', list.key, list.removed)
  if #list > 1 then -- one alone is the first anyway
    change('ZADD', list.key, pairs_of(list.moved, int))
  end
end
change('ZADD', line_key('ready'), pairs_of(tags, tag_text))
change('ZREM', line_key('ready'), passed)
change('ZADD', line_key('held'), held)
change('ZADD', line_key('woken'), woken)
write_cursors()
local first_held = redis.call('ZRANGE', line_key('held'), 0, 0, 'WITHSCORES')[2]
if first_held then
  ask_again(math.max(now + reach_us, first_held - near_us))
elseif line.recalled <= now and redis.call('EXISTS', line_key('ready'), line_key('woken'), line_key('late')) == 0 then
  -- Nobody is in line any more.
  redis.call('DEL', KEYS[2], line_key('cursors'), line_key('asked'), line_key('recalled'))
  line.list('SREM')
  return reply
end
line.wake_at = math.ceil(next_at)
line.save()
reply[3] = line.wake_at
return reply
