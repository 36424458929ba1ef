-- line_join: how a request meets the waiting line. A task that finds others of its
-- row in line gets no token that they could use: it joins them. It starts at once
-- only where a token would go to waste, as while those before it are still on their
-- way back from asynq.
--
-- ARGV, behind those of parts/line.lua:
--   idle_us    a slot within this is about to be wasted
--   wake_us    how far ahead the slot of a woken task may lie
--   requests   how many there are, and for each:
--     member   how its task stands in line; empty for one that does not
local idle_us, woken_wait_us = next_number(), next_number()
local first_member = argument + 1
local line_members = first_member
local line_requests = next_number()
argument = argument + line_requests

local all_limits = {}
for i = 1, #limits do
  all_limits[i] = i
end

-- What this call knows of rows and lanes.
local line_rows, line_tags, left_woken, started, joined = {}, {}, {}, {}, false

local function line_row(name)
  local row = line_rows[name]
  if not row then
    local key = line_key('row', name)
    row = { name = name, key = key, lane = lane_of(name), size = line.is_there and redis.call('ZCARD', key) or 0 }
    line_rows[name] = row
  end
  return row
end

-- A lane's tag, and the key that it stands in.
local function line_tag(lane)
  local tag = line_tags[lane]
  if not tag then
    local key = line_key('ready')
    local value = line.is_there and redis.call('ZSCORE', key, lane)
    if not value then
      key = line_key('lanes')
      value = line.is_there and redis.call('ZSCORE', key, lane)
    end
    tag = { key = key, value = math.max(line.virtual, tonumber(value or 0)) }
    line_tags[lane] = tag
  end
  return tag
end

local function move_tag(lane, by)
  local tag = line_tag(lane)
  tag.value = tag.value + by
  redis.call('ZADD', tag.key, line.tag_text(tag.value), lane)
  line.keep(tag.key)
end

-- Tells the dispatcher if it sleeps for longer than until `at`.
local function signal(at)
  if line.wake_at == 0 or at < line.wake_at + woken_wait_us then
    line.wake_at = now
    redis.call('PUBLISH', line_key('signal'), '')
  end
end

-- Lets an urgent task be looked for that is the first of a row that others wait in.
local function hurry_row(row, at)
  redis.call('ZADD', line_key('held'), 'XX', int(now), row.name)
  signal(at)
end

-- Lets a row that was empty be served.
local function open_row(row, at)
  if not line.one_row then
    redis.call('ZADD', line_key('rows', row.lane), int(row.head), row.name)
    line.keep(line_key('rows', row.lane))
  end
  local tag = line_tag(row.lane)
  if tag.key ~= line_key('ready') then
    redis.call('ZREM', tag.key, row.lane)
    tag.key = line_key('ready')
    redis.call('ZADD', tag.key, line.tag_text(tag.value), row.lane)
  end
  line.keep(tag.key)
  redis.call('HDEL', line_key('weights'), row.lane)
  signal(at)
end

-- The tickets of those that were woken, one for each request, or false.
local line_tickets = line.is_there and line_requests > 0
  and redis.call('HMGET', line_key('woken'), unpack(ARGV, line_members + 1, line_members + line_requests)) or {}

-- What the next requests have in common.
local current = {}

-- Reads where the next requests stand.
function line.next_row()
  current.row, current.weight, current.defer_us = next_text(), next_number(), next_number()
  current.place, current.may_stand = next_number(), next_number() == 1
end

-- The next request's task, or nil if it has nothing to do with the line.
function line.next_task()
  line_members = line_members + 1
  local member = ARGV[line_members]
  if member == '' then
    return nil
  end
  local task = { member = member, row = current.row, weight = current.weight, defer_us = current.defer_us,
    may_stand = current.may_stand, urgent = line.is_urgent(member) }
  local ticket = line_tickets[line_members - first_member]
  if ticket then
    local was = parse_ticket(ticket)
    task.place, task.share, task.turn, task.stands = was.place, math.max(0, was.share), was.turn, was.times == 0
    task.is_recalled = was.share < 0
  elseif current.place > 0 then
    task.place = current.place
  end
  return task
end

-- Whether urgent tasks stand in a row.
local function has_urgent(row)
  return row.size > 0 and line.is_urgent(redis.call('ZRANGE', row.key, 0, 0)[1])
end

-- Whether a task has to leave the tokens to others.
function line.is_behind(task)
  if not line.is_there or task.place and not task.is_recalled then
    return false
  end
  local row = line_row(task.row)
  if task.urgent and has_urgent(row) or not task.urgent and row.size > 0 then
    return true
  end
  return not (task.urgent and kept) and line_tag(row.lane).value > line.virtual
end

-- How far ahead a task's slot may lie. None is sent away from a slot that the next
-- one would get.
function line.patience(task, wait_us)
  return math.max(wait_us, task.place and not task.is_recalled and woken_wait_us or idle_us)
end

-- The slot of a task that is behind others: one that nobody else will be in time for.
function line.idle_slot(own, costs, from, who)
  local at = paced_instant(all_limits, own, costs, from, who)
  return at <= now + idle_us and at or nil
end

-- A task starts: it leaves the line, if it was there. Who has waited has paid for its
-- share when it was woken.
function line.start(task, costs)
  if not line.is_there then
    return
  end
  if task.place then
    left_woken[#left_woken + 1] = task.member
    started[#started + 1] = task.member
    if not task.is_recalled then
      return
    end
  end
  local row = line_row(task.row)
  if row.size > 0 and redis.call('ZREM', row.key, task.member) == 1 then
    row.size, line.count, joined = row.size - 1, line.count - 1, true
    started[#started + 1] = task.member
  end
  move_tag(row.lane, share_of(costs, task.weight))
end

-- When a task came that is asking, by which it has its place.
local function came_at()
  return math.max(now, line.last + 1)
end

-- When a task is expected to start that stands at that position of its row, and that
-- many are ahead of it in line: `from` is when it would pass if it were alone.
local function expected_at(from, ahead, position, costs, by_time)
  local shared_us, slowest_us = times_of(costs, by_time)
  return math.ceil(from + math.max(ahead * shared_us, (position - 1) * slowest_us))
end

-- How many of the others in line are ahead of a task at that position of its row:
-- lanes take turns.
local function ahead_of(row, position, others)
  line.lanes = line.lanes or redis.call('ZCARD', line_key('ready'))
  local lanes = line.lanes + (line_tag(row.lane).key ~= line_key('ready') and 1 or 0)
  return math.min(others, position * math.max(1, lanes) - 1)
end

-- Whether a task is not to stand in line. When a lease ends nobody can tell, so where
-- it was one that held the task back, only those before it put it off.
local function is_turned_away(task, costs, at, held_by, ahead, position)
  if task.defer_us < 0 then
    return true
  end
  local lacks_lease = held_by > 0 and limits[held_by].algorithm.renew
  return expected_at(lacks_lease and now or at, ahead, position, costs, true) - now > task.defer_us
end

-- Tells what join would of a task that is not in line, if it joined behind those that
-- this call has told of.
function line.look(task, costs, at)
  line.is_there = true
  local row = line_row(task.row)
  local came = came_at()
  local place = task.urgent and came - URGENT_US or came
  local position = 1 + (task.urgent and redis.call('ZCOUNT', row.key, '-inf', int(place)) or row.size)
  local expected = expected_at(at, ahead_of(row, position, line.count), position, costs)
  row.size, line.count, line.last = row.size + 1, line.count + 1, came
  return 2, expected, position, came
end

-- A denied task takes its place: at the end of its row, or where it was. Returns 2, the
-- instant at which it is expected to start, its position and its place; or 3 and these
-- if it is turned away. `at` is the first instant at which it would pass if it were
-- alone, and `held_by` the limit that says so. A task that has `came` came then.
function line.join(task, costs, at, held_by)
  local row = line_row(task.row)
  local came = task.came or came_at()
  local place = task.place or task.urgent and came - URGENT_US or came
  line.kept = math.max(line.kept, now + KEPT_US)
  local added = redis.call('ZADD', row.key, 'NX', int(place), task.member)
  if task.place then
    left_woken[#left_woken + 1] = task.member
    move_tag(row.lane, -(task.share or share_of(costs, task.weight)))
  end
  local position = row.size + 1
  if added == 0 or task.place or task.urgent or came <= line.last then
    position = redis.call('ZRANK', row.key, task.member) + 1
  end
  local ahead = ahead_of(row, position, line.count + added - 1)
  local expected = expected_at(at, ahead, position, costs)
  if is_turned_away(task, costs, at, held_by, ahead, position) then
    redis.call('ZREM', row.key, task.member)
    if added == 0 then
      row.size, line.count, joined = row.size - 1, line.count - 1, true
    end
    return 3, expected, position, task.urgent and place + URGENT_US or place
  end

  line.last = math.max(line.last, came)
  if added == 0 then
    place = tonumber(redis.call('ZSCORE', row.key, task.member))
  end
  if added == 0 or task.place then
    redis.call('HINCRBY', line_key('asked'), task.member, 1)
    line.keep(line_key('asked'))
  end
  row.head = position == 1 and place or row.head
  row.size, line.count, joined = row.size + added, line.count + added, true
  if added == 1 and row.size == 1 then
    open_row(row, at)
  elseif added == 1 and position == 1 and not line.one_row then
    redis.call('ZADD', line_key('rows', row.lane), 'XX', int(place), row.name)
  end
  if task.urgent and kept then
    redis.call('ZADD', line_key('urgent'), int(place), row.name)
    line.keep(line_key('urgent'))
  end
  if task.urgent and position == 1 and row.size > 1 then
    hurry_row(row, at)
  end
  if task.weight ~= 1 then
    redis.call('HSET', line_key('weights'), row.lane, task.weight)
    line.keep(line_key('weights'))
  end
  line.kept = math.max(line.kept, 2 * expected - now + KEPT_US)
  row.touched = true
  if not line.is_there then
    line.list('SADD')
  end
  line.is_there = true
  return 2, expected, position, task.urgent and place + URGENT_US or place
end

-- Writes the rest.
function line.finish()
  if #left_woken > 0 then
    redis.call('HDEL', line_key('woken'), unpack(left_woken))
  end
  if #started > 0 then
    redis.call('HDEL', line_key('asked'), unpack(started))
  end
  if not joined then
    return
  end
  for _, row in pairs(line_rows) do
    if row.touched then
      line.keep(row.key)
    end
  end
  line.save()
end
