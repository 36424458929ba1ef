-- line_join: how a request meets the waiting line. A task that finds others of its
-- row in line gets no token that they could use: it joins them. It starts at once
-- only where a token would go to waste, as while those before it are still on their
-- way back from asynq.
--
-- ARGV, behind those of parts/line.lua:
--   idle_us      a slot within this is about to be wasted
--   patience_us  how far ahead the slot of a woken task may lie
--   rows         how many there are, and for each its name and its lane's weight
--   requests     how many there are, and for each:
--     member, row   how its task stands in line, and the number of its row; 0 for one that
--                   does not heed the line
line.idle_us = next_number()
local patience_us = next_number()
local looks = operation == 'look'
local own_rows, asking, names = {}, {}, {}

for i = 1, next_number() do
  local row = row_named(next_text())
  row.weight, row.members, row.joined, row.left = next_number(), {}, {}, {}
  own_rows[i] = row
end
for i = 1, next_number() do
  local member, row = next_text(), own_rows[next_number()]
  if row then
    names[#names + 1], row.members[#row.members + 1] = name_of(row, member), member
  end
  asking[i] = row and { member = member, row = row, number = #names }
end

-- Which of those that ask were woken: their places, and when. What is forgotten of them, and
-- whether the line as a whole changes.
local awake = line.is_there and not looks and #names > 0 and redis.call('HMGET', line_key('awake'), unpack(names)) or {}
local heard, forgotten, changed = {}, {}, false

-- How many tasks wait in a row, with those that this call lets join it.
local function size_of(row)
  if not row.size then
    row.size = line.is_there and redis.call('ZCARD', row.key) or 0
    row.places = row.size == 0 and {} or nil
  end
  return row.size
end

-- The place of a task that waits in its row; nil for others.
local function waits_at(task)
  local row = task.row
  if size_of(row) > 0 and not row.places then
    row.places = {}
    for i, place in ipairs(redis.call('ZMSCORE', row.key, unpack(row.members))) do
      row.places[row.members[i]] = tonumber(place or nil)
    end
  end
  return row.places[task.member]
end

-- A lane's tag.
local tags = {}

local function tag_of(lane)
  if not tags[lane] then
    local tag = line.is_there and redis.call('ZSCORE', line_key('ready'), lane)
    tags[lane] = math.max(line.virtual, tonumber(tag or 0))
  end
  return tags[lane]
end

local function move_tag(lane, by)
  tags[lane], changed = tag_of(lane) + by, true
  write('ZADD', line_key('ready'), { tag_text(tags[lane]), lane })
end

-- Tells the dispatcher if it sleeps for longer than until `at`.
local function signal(at)
  if line.wake_at == 0 or at < line.wake_at + patience_us then
    line.wake_at, changed = now, true
    redis.pcall('PUBLISH', line_key('signal'), '')
  end
end

-- Lets a row be served: at once, or when it has tokens of its own.
local function open_row(row, place, at, held_by)
  local limit = limits[held_by]
  if limit and limit.value > 0 and not limit.algorithm.renew and at > line.wake_at then
    write('ZADD', line_key('held'), { int(at), row.name })
  else
    list_row(row, place)
  end
  signal(at)
end

-- Rows of which somebody asks are silent no more.
for _, row in ipairs(operation == 'ask' and line.silent > 0 and own_rows or {}) do
  if redis.call('HDEL', line_key('silent'), row.name) == 1 then
    line.silent, changed = line.silent - 1, true
    redis.call('ZADD', line_key('held'), 'XX', int(now), row.name)
    signal(now)
  end
end

local asked = 0

-- The next request's task, or nil if it has nothing to do with the line; `run` is what its
-- run tells of it.
function line.next_task(run)
  asked = asked + 1
  local task = asking[asked]
  if not task or not run then
    return nil
  end
  task.name, task.defer_us, task.may_stand = names[task.number], run.defer_us, run.may_stand
  task.came = run.place > 0 and run.place or nil -- its place, if it had one
  local place, woken = string.match(awake[task.number] or '', '^(%d+),(%d+)$')
  if place then
    task.place, heard[#heard + 1], forgotten[#forgotten + 1] = tonumber(place), task.name, task.name
    local took = now - woken
    if now % 8 == 0 and not line.is_measured and took < patience_us then -- one of some calls is enough
      line.lag = took > line.lag and took or line.lag - math.floor((line.lag - took) / 4)
      line.is_measured, changed = true, true
    end
  elseif line.recalled > now and not looks then
    task.came = tonumber(redis.call('ZSCORE', line_key('recalled'), string.match(task.member, '/(.*)$')) or task.came)
  end
  task.is_next = place or run.place > 0 and not looks and not waits_at(task)
  return task
end

-- Whether a task has to leave the tokens to others.
function line.is_behind(task)
  local row = task.row
  return line.is_there and not task.is_next
    and (size_of(row) > 0 or row.served_as ~= URGENT_LANE and tag_of(row.lane) > line.virtual)
end

-- How far ahead a task's slot may lie. None is sent away from a slot that the next
-- one would get.
function line.patience(task, wait_us)
  return math.max(wait_us, task.is_next and patience_us or line.idle_us)
end

local function leave(task)
  local row, waits = task.row, not task.place and waits_at(task)
  if waits then
    row.left[#row.left + 1] = task.member
    row.size, line.count, changed = row.size - 1, line.count - 1, true
  end
  if task.place or waits then
    forgotten[#forgotten + 1] = '+' .. task.member
  end
end

-- A task starts: it leaves the line, if it was there. Who was woken has paid for its
-- share then.
function line.start(task, costs)
  if line.is_there then
    leave(task)
    if not task.place then
      move_tag(task.row.lane, share_of(costs, task.row.weight))
    end
  end
end

-- When a task came that is asking, by which it has its place.
local function came_at(row)
  return math.max(now, line.last + 1) - (row.urgent and URGENT_US or 0)
end

-- The instant of a place.
local function since(row, place)
  return row.urgent and place + URGENT_US or place
end

-- Writes who joined a row.
local function write_row(row)
  write('ZADD', row.key, row.joined)
  row.joined = {}
end

-- A denied task takes its place: at the end of its row, or where it was. Returns 2, the
-- instant at which it is expected to start, its position and its place; or 3 and these
-- if it is turned away. `at` is the first instant at which it would pass if it were
-- alone, and `held_by` the limit that says so. A task that has `came` came then. Who only
-- looks is told what would be, and those behind take it to be there; one that has `came`
-- is there.
function line.join(task, costs, at, held_by)
  local row, waits = task.row, nil
  if looks then
    waits = task.came
  elseif not task.place then
    waits = waits_at(task)
  end
  local place = task.place or waits or task.came or came_at(row)
  local position = 1 + size_of(row)
  if position > 1 and since(row, place) <= line.last then
    write_row(row)
    position = 1 + redis.call('ZCOUNT', row.key, '-inf', '(' .. int(place))
  end
  -- Rows take turns.
  local is_new_row = row.size == 0 and 1 or 0
  local ahead = math.min(line.count - (waits and 1 or 0), position * (line.rows + is_new_row) - 1)
  local function expected(from, by_time)
    local shared_us, slowest_us = times_of(costs, by_time)
    return math.ceil(from + math.max(ahead * shared_us, (position - 1) * slowest_us))
  end
  local expected_at = expected(at)
  -- When a lease ends nobody can tell, so where it was one that held the task back, only
  -- those before it put it off.
  local lacks_lease = held_by > 0 and limits[held_by].algorithm.renew
  if task.defer_us < 0 or expected(lacks_lease and now or at, true) - now > task.defer_us then
    leave(task)
    return 3, expected_at, position, since(row, place)
  end
  if not waits then
    line.rows, line.count = line.rows + is_new_row, line.count + 1
    row.size, line.last = row.size + 1, math.max(line.last, since(row, place))
  end
  if looks then
    line.is_there = true
    return 2, expected_at, position, since(row, place)
  end

  line.keep_until(math.max(now, 2 * expected_at - now))
  if not line.is_there then
    line.is_there = true
    line.list('SADD')
  end
  if not waits then
    row.joined[#row.joined + 1], row.joined[#row.joined + 2] = int(place), task.member
    row.is_joined, changed = true, true
  end
  if task.place then
    move_tag(row.lane, -share_of(costs, row.weight))
  end
  if task.place or waits then
    redis.call('HINCRBY', line_key('awake'), '+' .. task.member, 1)
    expire(line_key('awake'))
  end
  if position == 1 or waits then -- its row's time has come, or its list is lost
    open_row(row, place, at, held_by)
  end
  return 2, expected_at, position, since(row, place)
end

-- Writes the rest.
function line.finish()
  for _, row in ipairs(own_rows) do
    if row.is_joined and row.weight ~= 1 then
      line.weighted = line.weighted + write('HSET', line_key('weights'), { row.lane, int(row.weight) })
    elseif row.is_joined and line.weighted > 0 then
      line.weighted = line.weighted - redis.call('HDEL', line_key('weights'), row.lane)
    end
    write_row(row)
    if remove('ZREM', row.key, row.left) > 0 and row.size == 0 then
      line.rows = line.rows - 1
      redis.call('ZREM', line_key('rows', row.served_as), row.name)
      redis.call('ZREM', line_key('held'), row.name)
    end
  end
  remove('ZREM', line_key('woken'), heard)
  remove('HDEL', line_key('awake'), forgotten)
  if changed then
    line.save()
  end
end
