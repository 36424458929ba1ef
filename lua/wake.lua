-- wake: says which tasks of a policy's waiting line are to be woken now, in order,
-- and when to ask again. It takes nothing from any limit: it wakes as many as the
-- limits' states say that may start until soon, less those that are about to ask.
--
-- Under the name of recall, it has tasks ask anew that stand in a line which nobody serves
-- any more, because the policy has others stand in line by other attributes, or is gone.
-- Nothing limits them then but how many are on their way, and they have the places in the
-- line of now that they had in this one, but no other right to a slot than who comes just now.
--
-- KEYS[1]  freeze key
-- KEYS[2]  line key
-- KEYS[3]  only for recall, if the policy is there: the key of the line of now, and with it
--          its /recalled
-- ARGV     as parts/policy.lua says, then as parts/line.lua does, then:
--   for each limit: its state key without a value. The keys of rows are made of it, for
--                  which rows there are is only known from the line. recall has no limits
--   id             who asks
--   term_us        how long id is the only one to wake; 0 to let another do it
--   near_us        how long before its slot a task must have been woken, at least: it
--                  is more where tasks took longer to ask of late. For recall, how long
--                  after their waking tasks may come
--   reach_us       how far ahead slots are filled, so that not every slot costs a call
--   hold_us        how long a task holds a slot of a concurrency limit, on the average;
--                  0 if that is not known: then nobody is woken to stand by for one
--   most_standing  how many may stand by, at most
--   names of tasks that are gone
-- Reply now_us, 1 if id is the one to wake, next_us: when to ask again (if id is not
--       the one, when it may be; 0 for not before a signal), then for each task its
--       name (see parts/line.lua)
-- Worst case: MOST_STEPS tasks woken or rows held, after as many each that did not ask, and
-- rows that are held no more. For each row three reads; a PAGE of rows for each lane; and the
-- names of all that are about to ask, which are no more than what the limits let start
-- within 2 x near_us, and of those that did not and are woken again as soon.
-- recall wakes MOST_RECALLED tasks.
-- A blind retry is safe: who was woken in vain is woken again. Who was recalled in a reply
-- that was lost is in line no more, and comes back when asynq's own time for it has come.
-- Needs Redis 6.2.

-- How many tasks a call wakes, or rows it holds, at most; more are for the next call.
local MOST_STEPS = 500
-- How many of those that were recalled are on their way at once; and how soon to go on if
-- there are more, and if enough are.
local MOST_RECALLED, MORE_US, BUSY_US = 128, 10000, 50000
-- Rows are read this many at a time; and their tasks, at first fewer.
local PAGE, FIRST_PAGE = 64, 12
-- How much more than near_us those that take longer to ask are woken ahead, at most.
local MOST_NEAR = 4
-- How often the time doubles for which a row is left alone that is silent, at most.
local MOST_DOUBLED = 6
-- The least that a lane's tag grows by for a task, so that lanes take turns in any case.
local LEAST_SHARE = 0.01
-- Who holds a slot for longer than this leaves it empty for less than a hundredth of
-- that, until the next one is woken.
local LONG_US = 10000000

local state_keys = {}
for i = 1, #limits do
  state_keys[i] = next_text()
end
local id, term_us, near_us, reach_us = next_text(), next_number(), next_number(), next_number()
local hold_us, most_standing = next_number(), next_number()
local recalls = operation == 'recall'

-- Until when those are found in /woken who were woken by any call that still count.
local counts_till = now + 2 * MOST_NEAR * near_us + MOST_STEPS
near_us = math.max(near_us, math.min(MOST_NEAR * near_us, 1.5 * line.lag))
local opens, till, most_steps = math.max(now, frozen_until), now + near_us + reach_us, MOST_STEPS
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
if recalls then
  opens, till = now, 2 ^ 53 -- no limit counts, and all rows are looked at
  most_steps = MOST_RECALLED - (KEYS[3] and redis.call('ZCARD', KEYS[3] .. '/recalled') or 0)
  if most_steps <= 0 then
    return { now, 1, now + BUSY_US }
  end
end

local reply, next_at, steps = { now, 1, 0 }, now + 1000000, 0
-- What is written at the end: members or fields, each with its score or value.
local woken, awake, recalled, held = {}, {}, {}, {}

local function ask_again(at)
  next_at = math.min(next_at, math.max(now, at))
end

-- Appends to a list.
local function note(list, ...)
  for _, value in ipairs({ ... }) do
    list[#list + 1] = value
  end
end

-- A task is woken, and is woken again if it has not asked after a while.
local function wake_up(name, again_us)
  steps = steps + 1
  note(reply, name)
  note(woken, int(now + again_us + steps), name)
end

-- A task of that place is to ask anew, and is in this line no more.
local function recall(name, place)
  local _, member = parse_name(name)
  steps = steps + 1
  note(reply, name)
  note(recalled, place, string.match(member, '/(.*)$'))
end

-- The state key of a limit for a row.
local function key_of(i, row)
  local value = row.values[limits[i].value] or ''
  return value == '' and state_keys[i] or state_keys[i] .. ':' .. value
end

-- What those will take who are about to ask, by state keys.
local claimed = {}

local function claim(row, member)
  local costs = parse_member(member)
  for i, limit in ipairs(limits) do
    if costs[i] <= limit.capacity then
      local key = key_of(i, row)
      claimed[key] = (claimed[key] or 0) + costs[i]
    end
  end
end

-- How long a row is left alone of which woken tasks did not ask; 0 if they did.
local function rest_us(row)
  row.silence = row.silence or line.silent > 0 and tonumber(redis.call('HGET', line_key('silent'), row.name) or nil) or 0
  return row.silence > 0 and silent_us * 2 ^ math.min(row.silence, MOST_DOUBLED) or 0
end

-- Who did not ask in time is woken again, for it may be the wake that was lost, and again
-- after twice as long. Until one of its row asks, they count for nothing. Others count for
-- what they will take. Who is recalled is so whether it waits or was woken. Returns one of
-- those that are still waited for, if there is one.
local function look_after_woken()
  local names = redis.call('ZRANGEBYSCORE', line_key('woken'), '-inf', recalls and '+inf' or int(now), 'LIMIT', 0, most_steps)
  local values = #names > 0 and redis.call('HMGET', line_key('awake'), unpack(names)) or {}
  for i, name in ipairs(names) do
    local row, place, since = parse_name(name), string.match(values[i] or '', '^(%d+),(%d+)$')
    local waited_us = now - (since or now)
    if recalls then
      recall(name, place or int(now))
    else
      if not row.is_silent and waited_us < 2 * silent_us then -- once in a call, however many of them
        row.is_silent, row.silence = true, redis.call('HINCRBY', line_key('silent'), row.name, 1)
        line.silent = line.silent + (row.silence == 1 and 1 or 0)
        expire(line_key('silent'))
      end
      wake_up(name, math.max(silent_us, math.min(waited_us, silent_us * 2 ^ MOST_DOUBLED)))
    end
  end
  remove('ZREM', line_key('woken'), names)
  local soon = redis.call('ZRANGEBYSCORE', line_key('woken'), '-inf', int(counts_till), 'WITHSCORES')
  ask_again(tonumber(soon[2] or next_at))
  for i = 1, #soon, 2 do
    local row, member = parse_name(soon[i])
    if rest_us(row) == 0 then
      claim(row, member)
    end
  end
  return soon[1]
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

-- The first task of a row that is not woken yet, and its place; nil if there is none.
local function first_of(row)
  if not row.page or row.at > #row.page and #row.page == 2 * row.size then
    row.from, row.size, row.at = (row.from or 0) + (row.size or 0), row.page and PAGE or FIRST_PAGE, 1
    row.page = redis.call('ZRANGE', row.key, row.from, row.from + row.size - 1, 'WITHSCORES')
  end
  return row.page[row.at], tonumber(row.page[row.at + 1] or nil)
end

-- Puts something into a list that is sorted by a field.
local function insert(list, one, field)
  local place = #list + 1
  while place > 1 and list[place - 1][field] > one[field] do
    place = place - 1
  end
  table.insert(list, place, one)
end

-- Held rows whose time has come join their lanes, by where they were.
local function let_held_rows_join()
  local names = redis.call('ZRANGEBYSCORE', line_key('held'), '-inf', int(till), 'LIMIT', 0, MOST_STEPS)
  for _, name in ipairs(names) do
    local _, place = first_of(row_named(name))
    if place then
      list_row(rows[name], place)
    end
  end
  remove('ZREM', line_key('held'), names)
  if #names == MOST_STEPS then
    ask_again(now)
  end
end

-- The elements of a lane's table are its rows, by the age of their first tasks. They are read
-- when its turn comes.
local served = {}

local function read_rows(lane)
  if not lane.key then
    lane.key, lane.removed, served[#served + 1] = line_key('rows', lane.name), {}, lane
    local page = redis.call('ZRANGE', lane.key, 0, PAGE - 1, 'WITHSCORES')
    for i = 1, #page, 2 do
      local row = row_named(page[i])
      row.head, lane[#lane + 1] = tonumber(page[i + 1]), row
    end
    lane.has_more = #page == 2 * PAGE
  end
end

-- A task takes its share of its lane's weight.
local function charge(lane, row, costs)
  local weight = tonumber(line.weighted > 0 and redis.call('HGET', line_key('weights'), row.lane) or 1)
  local share = math.max(LEAST_SHARE, share_of(costs, weight))
  if lane.name == URGENT_LANE then
    local tag = tonumber(redis.call('ZSCORE', line_key('ready'), row.lane) or 0)
    write('ZADD', line_key('ready'), { tag_text(math.max(tag, line.virtual) + share), row.lane })
  else
    line.virtual = math.max(line.virtual, lane.tag)
    lane.tag, lane.is_moved = line.virtual + share, true
  end
end

-- Wakes the first task of a row.
local function wake_first(row, member, place)
  local name = name_of(row, member)
  row.at, line.count, row.woken = row.at + 2, line.count - 1, row.woken or {}
  note(row.woken, member)
  if recalls then
    recall(name, int(place))
  else
    claim(row, member)
    wake_up(name, silent_us)
    note(awake, name, int(place) .. ',' .. int(now))
  end
end

-- Looks at a row that is the first of its lane: its first task is woken, if its limits let
-- it. Returns until when the row is held then, 0 if it is not; or nil if all have to wait
-- for what they share.
local function look_at(lane, row, member, place)
  local costs = parse_member(member)
  local at, limit, key = due_at(row, costs, false)
  if at > till and opens <= till then
    if limit then
      at = till + (standing[key] > 0 and look_again_us(limit) or 1000000)
      write('ZADD', line_key('lacking', key), { tag_text(lane.tag), row.name })
    end
    return at
  end
  at, limit, key = due_at(row, costs, true)
  if at > till then
    ask_again(limit and standing[key] > 0 and now + look_again_us(limit) or math.max(now + reach_us, at - near_us))
    return nil
  end
  wake_first(row, member, place)
  charge(lane, row, costs)
  return not recalls and rest_us(row) > 0 and now + rest_us(row) or 0
end

-- Serves the first row of a lane, and puts it where it belongs then. Returns whether to go
-- on with others.
local function serve(lane)
  local row, held_until = lane[1], 0
  local member, place = first_of(row)
  if member and not (lane[2] and place > lane[2].head) then
    held_until = look_at(lane, row, member, place)
    if not held_until then
      return false
    end
    member, place = first_of(row)
    line.rows = line.rows - (member and 0 or 1)
  end
  table.remove(lane, 1)
  if member and held_until == 0 then
    row.head, row.is_moved = place, true
    insert(lane, row, 'head')
    return true
  end
  note(lane.removed, row.name)
  if member then
    steps = steps + 1
    note(held, int(math.max(held_until, till + 1)), row.name)
  end
  return true
end

-- Serves lanes by their tags, as far as one page of them reaches.
local function serve_lanes()
  local lanes = {}
  local page = redis.call('ZRANGE', line_key('ready'), 0, MOST_STEPS - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    lanes[#lanes + 1] = { name = page[i], tag = tonumber(page[i + 1]) }
    if line.is_longer then
      expire(line_key('rows', page[i]))
    end
  end
  local last, goes_on = #lanes == MOST_STEPS and lanes[#lanes].tag or math.huge, true
  while goes_on and lanes[1] do
    if steps >= most_steps or lanes[1].tag > last then
      ask_again(now)
      return
    end
    local lane = table.remove(lanes, 1)
    read_rows(lane)
    goes_on = not lane[1] or serve(lane)
    if lane[1] then
      insert(lanes, lane, 'tag')
    elseif lane.has_more then
      ask_again(now)
    end
  end
end

-- Writes what has become of lanes and rows.
local function write_lanes()
  local tags, passed = {}, {}
  for _, lane in ipairs(served) do
    local heads = {}
    for _, row in ipairs(lane[2] and lane or {}) do -- one alone is the first anyway
      if row.is_moved then
        note(heads, int(row.head), row.name)
      end
    end
    write('ZADD', lane.key, heads, true)
    remove('ZREM', lane.key, lane.removed)
    if lane.is_moved then
      note(tags, tag_text(lane.tag), lane.name)
    elseif not lane[1] and not lane.has_more then
      note(passed, lane.name)
    end
  end
  write('ZADD', line_key('ready'), tags, true)
  remove('ZREM', line_key('ready'), passed)
  for _, row in pairs(rows) do
    remove('ZREM', row.key, row.woken or {})
  end
end

-- Those who are gone leave.
local gone = { unpack(ARGV, argument + 1) }
remove('HDEL', line_key('awake'), gone)
remove('ZREM', line_key('woken'), gone)
line.keep_until(now)
local is_awaited = look_after_woken()
let_held_rows_join()
serve_lanes()
write_lanes()
write('ZADD', line_key('held'), held)
write('ZADD', line_key('woken'), woken, is_awaited)
write('HSET', line_key('awake'), awake, is_awaited)

local first_held = redis.call('ZRANGE', line_key('held'), 0, 0, 'WITHSCORES')[2]
if first_held then
  ask_again(math.max(now + reach_us, first_held - near_us))
end
if first_held or woken[1] or not recalls and line.recalled > now or redis.call('EXISTS', line_key('ready'), line_key('woken')) > 0 then
  line.wake_at = recalls and now + MORE_US or math.ceil(next_at)
  reply[3] = line.wake_at
  line.save()
else -- nobody is in line any more
  redis.call('DEL', line.key, line_key('awake'), line_key('silent'), line_key('weights'), line_key('recalled'))
  line.list('SREM')
end
if KEYS[3] and #recalled > 0 then
  line.read(3)
  line.keep_until(now)
  line.recalled = now + near_us
  line.save()
  line.list('SADD')
  redis.call('ZADD', line_key('recalled'), unpack(recalled))
  redis.call('PEXPIRE', line_key('recalled'), int(ttl_ms(near_us)))
end
return reply
