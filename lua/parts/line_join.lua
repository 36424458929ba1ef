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
local own_rows, asking = {}, {}

for i = 1, next_number() do
  own_rows[i] = row_named(next_text())
  own_rows[i].weight, own_rows[i].members, own_rows[i].left = next_number(), {}, {}
end
for i = 1, next_number() do
  local member, row = next_text(), own_rows[next_number()]
  asking[i] = row and { member = member, row = row, name = name_of(row, member) } or false
  if row then
    row.members[#row.members + 1] = member
  end
end

for _, row in ipairs(own_rows) do
  know(row)
  row.asked, row.places = 0, row.kept > 0 and redis.call('ZMSCORE', row.key, unpack(row.members)) or {}
end

-- How many tasks a row has; its key may be gone although its cursor is there.
local function size_of(row)
  if not row.size then
    row.size = row.kept > 0 and redis.call('ZCARD', row.key) or 0
    row.is_new = row.size == 0
  end
  return row.size
end

-- What this call changes.
local tags, asked_before, changed = {}, {}, false

-- A lane's tag.
local function tag_of(lane)
  if not tags[lane] then
    local tag = line.is_there and redis.call('ZSCORE', line_key('ready'), lane)
    tags[lane] = math.max(line.virtual, tonumber(tag or 0))
  end
  return tags[lane]
end

local function move_tag(lane, by)
  tags[lane] = tag_of(lane) + by
  change('ZADD', line_key('ready'), { tag_text(tags[lane]), lane })
end

-- Tells the dispatcher if it sleeps for longer than until `at`.
local function signal(at)
  if line.wake_at == 0 or at < line.wake_at + patience_us then
    line.wake_at = now
    redis.pcall('PUBLISH', line_key('signal'), '')
  end
end

-- Lets a row be served: at once, or when it has tokens of its own.
local function open_row(row, place, at, held_by)
  local limit = limits[held_by]
  if limit and limit.value > 0 and not limit.algorithm.renew and at > line.wake_at then
    change('ZADD', line_key('held'), { int(at), row.name })
    row.is_changed, row.is_listed = true, true
  else
    list_row(row, place)
  end
  signal(at)
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
  local row = task.row
  row.asked = row.asked + 1
  task.place = tonumber(row.places[row.asked] or nil)
  task.defer_us, task.may_stand = run.defer_us, run.may_stand
  task.came = run.place > 0 and run.place or nil -- its place, if it had one
  if line.only_looks then -- it does not ask
    return task
  end
  if task.place then
    if not line.is_measured and now % 8 == 0 then -- one of some calls is enough
      local woken = redis.call('ZSCORE', line_key('woken'), task.name)
      local took = woken and now - woken or line.lag
      changed = true
      line.lag, line.is_measured = took > line.lag and took or line.lag - math.floor((line.lag - took) / 4), true
    end
    task.is_next = redis.call('ZREM', line_key('woken'), task.name) == 1
      or redis.call('ZREM', line_key('late'), task.name) == 1 or task.place <= row.cursor
  elseif line.recalled > now then
    local place = redis.call('ZSCORE', line_key('recalled'), string.match(task.member, '/(.*)$'))
    task.came = tonumber(place or task.came)
  end
  task.is_next = task.is_next or not task.place and run.place > 0
  if row.silence > 0 then
    -- Somebody of this row asks: it is not silent any more.
    row.silence, row.is_changed, changed = 0, true, true
    redis.call('ZADD', line_key('held'), 'XX', int(now), row.name)
    signal(now)
  end
  return task
end

-- Whether a task has to leave the tokens to others.
function line.is_behind(task)
  if not line.is_there or task.is_next then
    return false
  end
  local row = task.row
  return size_of(row) > 0 or not (row.urgent and kept) and tag_of(row.lane) > line.virtual
end

-- How far ahead a task's slot may lie. None is sent away from a slot that the next
-- one would get.
function line.patience(task, wait_us)
  return math.max(wait_us, task.is_next and patience_us or line.idle_us)
end

local function leave(task)
  local row = task.row
  row.left[#row.left + 1] = task.member
  row.size = row.size and row.size - 1
  if not task.is_next then
    line.count, changed = line.count - 1, true
  end
end

-- A task starts: it leaves the line, if it was there. Who was woken has paid for its
-- share then.
function line.start(task, costs)
  if not line.is_there then
    return
  end
  if task.place then
    leave(task)
    asked_before[#asked_before + 1] = line.returned > 0 and task.member or nil
  end
  if not (task.place and task.is_next) then
    changed = true
    move_tag(task.row.lane, share_of(costs, task.row.weight))
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

-- When a task is expected to start that stands at that position of its row, and that
-- many are ahead of it in line: `from` is when it would pass if it were alone.
local function expected_at(from, ahead, position, costs, by_time)
  local shared_us, slowest_us = times_of(costs, by_time)
  return math.ceil(from + math.max(ahead * shared_us, (position - 1) * slowest_us))
end

-- How many of the others in line are ahead of a task at that position of its row: rows
-- take turns.
local function ahead_of(row, position, others)
  return math.min(others, position * (line.rows + (row.kept == 0 and 1 or 0)) - 1)
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
  local row = task.row
  line.is_there = true
  local place = came_at(row)
  local position = 1 + size_of(row)
  local expected = expected_at(at, ahead_of(row, position, line.count), position, costs)
  row.size, line.count, line.last = row.size + 1, line.count + 1, since(row, place)
  return 2, expected, position, since(row, place)
end

-- A denied task takes its place: at the end of its row, or where it was. Returns 2, the
-- instant at which it is expected to start, its position and its place; or 3 and these
-- if it is turned away. `at` is the first instant at which it would pass if it were
-- alone, and `held_by` the limit that says so. A task that has `came` came then.
function line.join(task, costs, at, held_by)
  local row, is_new = task.row, not task.place
  local place = task.place or task.came or came_at(row)
  local position = 1 + size_of(row)
  if not is_new or place <= line.last then
    position = 1 + (is_new and redis.call('ZCOUNT', row.key, '-inf', '(' .. int(place)) or redis.call('ZRANK', row.key, task.member))
  end
  local ahead = ahead_of(row, position, line.count - (is_new and 0 or 1))
  local expected = expected_at(at, ahead, position, costs)
  if is_turned_away(task, costs, at, held_by, ahead, position) then
    if not is_new then
      leave(task)
    end
    return 3, expected, position, since(row, place)
  end

  line.keep_until(math.max(now, 2 * expected - now))
  if is_new then
    redis.call('ZADD', row.key, 'NX', int(place), task.member)
    row.size, line.count, line.last = row.size + 1, line.count + 1, math.max(line.last, since(row, place))
  else
    line.returned = line.returned + 1
    redis.call('HINCRBY', line_key('asked'), task.member, 1)
    redis.call('PEXPIRE', line_key('asked'), int(ttl_ms(line.kept - now)))
    if task.is_next then
      line.count = line.count + 1
      move_tag(row.lane, -share_of(costs, row.weight))
    end
  end
  if not line.is_there then
    line.list('SADD')
    line.is_there = true
  end
  row.is_changed, changed = row.is_changed or row.is_new or row.kept < line.kept, true
  local is_first = not row.is_listed or place <= row.cursor or is_new and place < line.last
  row.cursor = math.min(row.cursor, place - 1)
  if is_first then
    open_row(row, place, at, held_by)
  end
  return 2, expected, position, since(row, place)
end

-- Writes the rest.
function line.finish()
  change('HDEL', line_key('asked'), asked_before)
  for _, row in ipairs(own_rows) do
    change('ZREM', row.key, row.left)
    if #row.left > 0 and not row.is_listed and redis.call('EXISTS', row.key) == 0 then
      row.size, changed = 0, true
    end
  end
  if changed then
    write_cursors()
    line.save()
  end
end
