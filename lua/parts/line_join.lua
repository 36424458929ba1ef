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
  asking[i] = row and { member = member, row = row, name = names[#names], number = #names }
end

-- What this call changes: those who were awake and ask, members of which nothing is to be
-- known any more, and lanes whose tags move.
local heard, forgotten, moved, changed = {}, {}, {}, false
local stood, stood_places = {}, {}

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
  tags[lane] = tag_of(lane) + by
  moved[lane], changed = true, true
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

-- Reads which of those that ask were woken. Rows of which somebody asks are silent no more.
local places

local function read_places()
  places = line.is_there and redis.call('HMGET', line_key('awake'), unpack(names)) or {}
  for _, row in ipairs(line.asks and line.silent > 0 and own_rows or {}) do
    if redis.call('HDEL', line_key('silent'), row.name) == 1 then
      line.silent, changed = line.silent - 1, true
      redis.call('ZADD', line_key('held'), 'XX', int(now), row.name)
      signal(now)
    end
  end
end

-- How long it took a woken task to ask; one of some calls is enough.
local function measure(task)
  if now % 8 == 0 and not line.is_measured then
    local woken = redis.call('ZSCORE', line_key('woken'), task.name)
    local took = woken and now - woken or line.lag
    line.lag = took > line.lag and took or line.lag - math.floor((line.lag - took) / 4)
    line.is_measured, changed = true, true
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
  task.defer_us, task.may_stand = run.defer_us, run.may_stand
  task.came = run.place > 0 and run.place or nil -- its place, if it had one
  if line.only_looks then -- it does not ask
    return task
  elseif not places then
    read_places()
  end
  task.place = tonumber(places[task.number] or nil)
  if task.place then
    heard[#heard + 1] = task.name
    measure(task)
  elseif line.recalled > now then
    task.came = tonumber(redis.call('ZSCORE', line_key('recalled'), string.match(task.member, '/(.*)$')) or task.came)
  end
  task.is_next = task.place or run.place > 0 and not waits_at(task)
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
  local row, waited = task.row, not task.place and waits_at(task)
  if waited then
    row.left[#row.left + 1] = task.member
    row.size, line.count, changed = row.size - 1, line.count - 1, true
  end
  if task.place or waited then
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
-- looks is told what would be; those behind take it to be there, and one that has `came`
-- is.
function line.join(task, costs, at, held_by)
  local row, waits = task.row, nil
  if line.only_looks then
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
  local ahead = math.min(line.count - (waits and 1 or 0), position * (line.rows + (row.size == 0 and 1 or 0)) - 1)
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
    line.rows, line.count = line.rows + (row.size == 0 and 1 or 0), line.count + 1
    row.size, line.last = row.size + 1, math.max(line.last, since(row, place))
  end
  local is_new_line = not line.is_there
  line.is_there = true
  if not line.only_looks then
    line.keep_until(math.max(now, 2 * expected_at - now))
    if is_new_line then
      line.list('SADD')
    end
    if not waits then
      row.joined[#row.joined + 1], row.joined[#row.joined + 2] = int(place), task.member
      row.is_joined, changed = true, true
    end
    if task.place or waits then
      redis.call('HINCRBY', line_key('awake'), '+' .. task.member, 1)
      expire(line_key('awake'))
    end
    if task.place then
      move_tag(row.lane, -share_of(costs, row.weight))
    end
    if position == 1 or waits then -- its row's time has come, or its list is lost
      open_row(row, place, at, held_by)
    end
  end
  return 2, expected_at, position, since(row, place)
end

-- Writes the rest.
function line.finish()
  if line.only_looks then
    return
  end
  local weights, light, ready = {}, {}, {}
  for _, row in ipairs(own_rows) do
    write_row(row)
    if remove('ZREM', row.key, row.left) > 0 and row.size == 0 then
      line.rows = line.rows - 1
      redis.call('ZREM', line_key('rows', row.served_as), row.name)
      redis.call('ZREM', line_key('held'), row.name)
    end
    if row.is_joined and row.weight ~= 1 then
      weights[#weights + 1], weights[#weights + 2] = row.lane, int(row.weight)
    elseif row.is_joined and line.weighted > 0 then
      light[#light + 1] = row.lane
    end
  end
  line.weighted = line.weighted + write('HSET', line_key('weights'), weights) - remove('HDEL', line_key('weights'), light)
  if remove('ZREM', line_key('woken'), heard) < #heard then
    remove('ZREM', line_key('late'), heard)
  end
  for _, name in ipairs(heard) do
    forgotten[#forgotten + 1] = name
  end
  remove('HDEL', line_key('awake'), forgotten)
  write('HSET', line_key('awake'), stood_places)
  write('ZADD', line_key('late'), stood)
  for lane in pairs(moved) do
    ready[#ready + 1], ready[#ready + 2] = tag_text(tags[lane]), lane
  end
  write('ZADD', line_key('ready'), ready)
  if changed then
    line.save()
  end
end
