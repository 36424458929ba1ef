-- line: the waiting line of a policy. It only says who is asked next; whether that
-- task may start is decided by the limits alone.
--
-- Tasks that are counted by the same keys, and are of one queue, form a row: first in,
-- first out. A task leaves its row when it is woken. If it is denied after all, it comes
-- back to its place. So a row is those that wait, and a task that never asks keeps nobody
-- waiting.
--
-- Rows belong to lanes, and are served there by the age of their first tasks. Between lanes
-- it is start-time fair queueing (Goyal, Vin, Cheng 1996): the lane with the smallest tag is
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
--   /rows:<lane>  sorted set: rows that may be served, by the places of their first tasks.
--                 A row that is not empty is here or in /held
--   /ready        sorted set: lanes by their tags, if they have such rows or are ahead
--   /held         sorted set: other rows, by the instant at which they are looked at
--   /lacking:<state key>
--                 sorted set: those of them that look as soon as something comes back
--                 there, by their lanes' tags
--   /awake        hash: the places of tasks that were woken and are not back, and when they were
--                 woken, by their names. A name is "<length of row>|<row><member>". And how
--                 often tasks came back, by "+<member>"
--   /woken        sorted set: their names by the instants at which they are woken again
--   /silent       hash: of rows how often woken tasks did not ask since one did
--   /weights      hash: the weights of lanes, if not 1
--   /standing:<state key>
--                 sorted set: "<free>,<cost>/<name>" of those who stand by for a slot there,
--                 by their places; a slot is theirs if that much is free. It is there
--                 without the line, too: the state tells whether to look
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

-- Keys are kept for this much longer than the last task's backstop, and a little more, so
-- that this seldom changes.
local KEPT_US, KEPT_STEP_US = 24 * 3600 * 1000000, 3600 * 1000000
local LISTED_MS = '2678400000'

local META = {
  'virtual', -- time, as a tag
  'count', 'last', -- of tasks that wait; the last place given
  'wake_at', -- when wake is called next; 0 for not before a signal
  'kept', -- until when all keys are
  'lag', -- how long woken tasks took to ask of late
  'recalled', -- until when some may come who stood in another line
  'rows', 'silent', 'weighted', -- how many rows are not empty; the sizes of /silent and /weights
  'term', -- until when the leader is the one to wake
}
local META_PATTERN = '^' .. string.rep('([^,]+),', #META) .. '(.*)$'

-- Reads the line whose key is at that place of KEYS.
function line.read(place)
  local fields = { string.match(raw[place] or '', META_PATTERN) }
  line.key, line.is_there, line.is_longer = KEYS[place], #fields > 0, false
  for i, name in ipairs(META) do
    line[name] = tonumber(fields[i] or 0)
  end
  line.leader = fields[#META + 1] or ''
end

line.read(2)

local function line_key(kind, name)
  return line.key .. '/' .. kind .. (name and ':' .. name or '')
end

-- A tag as it is kept: never a whole number, for an embedded server writes 300000000 as
-- "3e+8", which its own Lua does not take for a number.
local function tag_text(tag)
  return string.format('%.2f1', tag)
end

local function expire(key)
  redis.call('PEXPIRE', key, int(ttl_ms(line.kept - now)))
end

-- Takes members or fields out of a key, and tells how many were there.
local function remove(command, key, members)
  return #members > 0 and redis.call(command, key, unpack(members)) or 0
end

-- Writes to a key of the line, if there is anything to write, and tells how many members or
-- fields are new. The key gets its expiry, unless it is known to have one.
local function write(command, key, arguments, has_expiry)
  local new = remove(command, key, arguments)
  if #arguments > 0 and not has_expiry then
    expire(key)
  end
  return new
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
    row.served_as = kept and row.urgent and URGENT_LANE or row.lane
    rows[name] = row
  end
  return row
end

-- Lets a row be served whose first task came at that place.
local function list_row(row, place)
  write('ZADD', line_key('rows', row.served_as), { 'LT', int(place), row.name })
  write('ZADD', line_key('ready'), { 'GT', tag_text(row.served_as == URGENT_LANE and 0 or line.virtual), row.served_as })
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
    line.kept, line.is_longer = at + KEPT_US + KEPT_STEP_US, true
  end
end

-- Lists the line, or takes it off the list.
function line.list(command)
  local lines = string.sub(KEYS[1], 1, -7) .. 'lines'
  redis.call(command, lines, line.key)
  redis.call('PEXPIRE', lines, LISTED_MS)
end

-- Writes what has become of the line as a whole.
function line.save()
  local fields = { tag_text(line.virtual) }
  for i = 2, #META do
    fields[i] = int(line[META[i]])
  end
  redis.call('SET', line.key, table.concat(fields, ',') .. ',' .. line.leader, 'PX', int(ttl_ms(line.kept - now)))
  for _, kind in ipairs(line.is_longer and { 'ready', 'held', 'awake', 'woken', 'silent', 'weights' } or {}) do
    expire(line_key(kind))
  end
end
