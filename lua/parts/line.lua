-- line: the waiting line of a policy. It only says who is asked next; whether that
-- task may start is decided by the limits alone.
--
-- Tasks that are counted by the same keys, and are of one queue, form a row: first in,
-- first out. A task stays in its row until it starts or leaves. Each row has a cursor:
-- tasks up to it were woken, and may ask; a woken task that is denied moves the cursor
-- back. So a task that never asks keeps nobody waiting: the cursor has passed it.
--
-- Rows belong to lanes, and are served there by the age of their heads. Between lanes it
-- is start-time fair queueing (Goyal, Vin, Cheng 1996): the lane with the smallest tag is
-- served, its tag is the virtual time then, and its next tag is larger by the share that
-- its task took, divided by its weight. A lane that comes back begins at the virtual
-- time, or at its own tag if that is later: idleness is no credit. A task's share is the
-- longest time that one of the shared limits takes to make up for its cost (the dominant
-- resource of Ghodsi et al. 2011).
--
-- How many are woken is what the limits' own states say that may start until soon, less
-- those who were woken and are about to ask. A row that lacks tokens of its own is held
-- until they are there; one of whose woken tasks few ask is held for longer each time.
--
-- An urgent task is taken to have come a day before it did, in a row of its own. Where
-- limits keep something for such tasks, these rows are served before all lanes.
--
-- Nobody can tell when a slot of a concurrency limit will be free, but how many are in
-- a while. So some tasks are woken ahead of that: when they ask they are told to stand
-- by, with a worker but without a slot. They are in no row then, and nobody wakes them.
-- Whoever ends a lease hands its slot to the first of them, and calls it.
--
-- All keys begin with the line's own, KEYS[2]; tasks that are to stand in line by other
-- attributes have another one:
--   ""            as META names it; missing: nobody is in line
--   /row:<row>    sorted set: members by their places, the instants in us at which they
--                 came. A member is "<costs>/<task>", costs as "3,1", or nothing if all
--                 are 1
--   /cursors      hash: of each row "<cursor>,<silence>,<weight>,<kept_us>,<is_listed>": the
--                 place of the last that was woken, how often some did not ask since one
--                 did, the weight of its lane, until when its key is kept, and 1 if the row is in
--                 one of the next three
--   /rows:<lane>  sorted set: rows that may be served, by the place of their heads
--   /ready        sorted set: lanes by their tags, if they have such rows or are ahead
--   /held         sorted set: other rows, by the instant at which they are looked at
--   /lacking:<state key>
--                 sorted set: those of them that look as soon as something comes back
--                 there, by their lanes' tags
--   /woken        sorted set: names of tasks that are about to ask, by the instant of
--                 their waking. A name is "<length of row>|<row><member>"
--   /late         sorted set: names of those that did not, by the instant at which they
--                 are woken again
--   /standing:<state key>
--                 sorted set: "<free>,<cost>/<name>" of those who stand by for a slot there,
--                 by their places; a slot is theirs if that much is free. It is there
--                 without the line, too: the state tells whether to look
--   /asked        hash: how often tasks were sent back into line that asked again
--   /recalled     sorted set: tasks that stood in another line, by their places there
-- and one key is the policy's: "rm:{policy}/lines", a set of the keys of the lines that
-- have somebody in them, so that none is forgotten; it is kept for a month after a line
-- has begun, which is longer than any line should be.
--
-- A row is the values of its attributes as netstrings (Bernstein 1997), the lane's
-- first, and the queue as the last: "2:42,3:eu1,7:default,". That of urgent tasks begins
-- with "!". The `value` of a limit says which of them counts there, 0 for none.
--
-- ARGV, behind what parts/policy.lua says, begins with has_lane: 1 if the first value of a
-- row is its lane.
local line = { has_lane = next_number() == 1 }

-- The lane of rows of urgent tasks where limits keep something for them: no task's own.
local URGENT_LANE = '\0'

-- How much earlier than it did an urgent task is taken to have come.
local URGENT_US = 24 * 3600 * 1000000
line.urgent_us = URGENT_US

-- Keys are kept for this much longer than the last task's backstop, and a little more, so
-- that this seldom changes.
local KEPT_US, KEPT_STEP_US = 24 * 3600 * 1000000, 3600 * 1000000
local LISTED_MS = '2678400000'

local META = {
  'virtual', -- time, as a tag
  'count', 'last', -- of tasks; the last place given
  'wake_at', -- when wake is called next; 0 for not before a signal
  'kept', -- until when all keys are
  'lag', -- how long woken tasks took to ask of late
  'recalled', -- until when some may come who stood in another line
  'rows', 'returned', -- how many rows there are; how many tasks were sent back that asked again
  'term', -- until when the leader is the one to wake
}
local META_PATTERN = '^' .. string.rep('([^,]+),', #META) .. '(.*)$'

do
  local fields = { string.match(raw[2] or '', META_PATTERN) }
  line.is_there = #fields > 0
  for i, name in ipairs(META) do
    line[name] = tonumber(fields[i] or 0)
  end
  line.leader = fields[#META + 1] or ''
end

local function line_key(kind, name)
  return KEYS[2] .. '/' .. kind .. (name and ':' .. name or '')
end

-- A tag as it is kept: never a whole number, for an embedded server writes 300000000 as
-- "3e+8", which its own Lua does not take for a number.
local function tag_text(tag)
  return string.format('%.2f1', tag)
end

-- Changes a key of the line, if there is anything to change.
local function change(command, key, arguments)
  if #arguments > 0 then
    redis.call(command, key, unpack(arguments))
    if command ~= 'ZREM' and command ~= 'HDEL' then
      redis.call('PEXPIRE', key, int(ttl_ms(line.kept - now)))
    end
  end
end

-- The rows that a call has to do with, by their names.
local rows = {}

local function row_named(name)
  local row = rows[name]
  if not row then
    row = { name = name, key = line_key('row', name), urgent = string.sub(name, 1, 1) == '!', values = {} }
    local from = row.urgent and 2 or 1
    while from <= #name do
      local colon = string.find(name, ':', from, true)
      from = colon + tonumber(string.sub(name, from, colon - 1)) + 2
      row.values[#row.values + 1] = string.sub(name, colon + 1, from - 2)
    end
    row.lane = line.has_lane and row.values[1] or ''
    rows[name] = row
  end
  return row
end

-- Reads what is known of a row, once.
local function know(row)
  if not row.cursor then
    local text = line.is_there and redis.call('HGET', line_key('cursors'), row.name) or ''
    local cursor, silence, weight, kept_us, listed = string.match(text, '^(%d+),(%d+),(%d+),(%d+),(%d)$')
    row.cursor, row.silence, row.kept = tonumber(cursor or 0), tonumber(silence or 0), tonumber(kept_us or 0)
    row.is_listed, weight = listed == '1', tonumber(weight or 1)
    row.is_changed, row.weight = row.weight ~= nil and row.weight ~= weight, row.weight or weight
  end
  return row
end

-- Writes it, and keeps the rows' keys for as long as the line; rows without a task are
-- forgotten.
local function write_cursors()
  local texts, empty = {}, {}
  for name, row in pairs(rows) do
    if row.size == 0 and row.kept > 0 then
      empty[#empty + 1], line.rows = name, line.rows - 1
    elseif row.size ~= 0 and row.is_changed then
      texts[#texts + 1] = name
      texts[#texts + 1] = string.format('%d,%d,%d,%d,%d', row.cursor, row.silence, row.weight, line.kept, row.is_listed and 1 or 0)
      line.rows = line.rows + (row.kept == 0 and 1 or 0)
      if row.is_new or row.kept < line.kept then
        redis.call('PEXPIRE', row.key, int(ttl_ms(line.kept - now)))
      end
    end
  end
  change('HSET', line_key('cursors'), texts)
  change('HDEL', line_key('cursors'), empty)
end

-- Lets a row be served whose first task that was not woken came at that place.
local function list_row(row, place)
  local lane = kept and row.urgent and URGENT_LANE or row.lane
  change('ZADD', line_key('rows', lane), { 'LT', int(place), row.name })
  change('ZADD', line_key('ready'), { 'GT', tag_text(lane == URGENT_LANE and 0 or line.virtual), lane })
  row.is_changed, row.is_listed = true, true
end

local function name_of(row, member)
  return #row.name .. '|' .. row.name .. member
end

-- The row and the member of a name.
local function parse_name(name)
  local bar = string.find(name, '|', 1, true)
  local length = tonumber(string.sub(name, 1, bar - 1))
  return row_named(string.sub(name, bar + 1, bar + length)), string.sub(name, bar + length + 1)
end

-- The costs of a member of a row, and its task.
local function parse_member(member)
  local slash, costs = string.find(member, '/', 1, true), {}
  for cost in string.gmatch(string.sub(member, 1, slash - 1), '%d+') do
    costs[#costs + 1] = tonumber(cost)
  end
  for i = #costs + 1, #limits do
    costs[i] = 1
  end
  return costs, string.sub(member, slash + 1)
end

-- How a task of those costs stands by for a slot of the limit i.
local function standing_member(i, row, costs, name)
  return int(costs[i] + (row.urgent and 0 or limits[i].kept)) .. ',' .. int(costs[i]) .. '/' .. name
end

-- How long the limits take to make up for a task's costs: the slowest of those that
-- all rows share, and the slowest of all; on request only of those in which time alone
-- tells, which leaves out leases.
local function times_of(costs, by_time)
  local shared_us, slowest_us = 0, 0
  for i, limit in ipairs(limits) do
    local us = by_time and limit.algorithm.renew and 0 or costs[i] * limit.period_us / limit.count
    slowest_us = math.max(slowest_us, us)
    if limit.value == 0 then
      shared_us = math.max(shared_us, us)
    end
  end
  return shared_us, slowest_us
end

-- How much of the policy's time a task takes, divided by its lane's weight.
local function share_of(costs, weight)
  local shared_us, slowest_us = times_of(costs)
  return (shared_us > 0 and shared_us or slowest_us) / weight
end

-- Keeps all keys until that long after an instant.
function line.keep_until(at)
  if line.kept < at + KEPT_US then
    line.kept = at + KEPT_US + KEPT_STEP_US
  end
end

-- Lists the line, or takes it off the list.
function line.list(command)
  local lines = string.sub(KEYS[1], 1, -7) .. 'lines'
  redis.call(command, lines, KEYS[2])
  redis.call('PEXPIRE', lines, LISTED_MS)
end

-- Writes what has become of the line as a whole.
function line.save()
  local fields = { tag_text(line.virtual) }
  for i = 2, #META do
    fields[i] = int(line[META[i]])
  end
  redis.call('SET', KEYS[2], table.concat(fields, ',') .. ',' .. line.leader, 'PX', int(ttl_ms(line.kept - now)))
end
