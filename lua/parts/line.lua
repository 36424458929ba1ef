-- line: the waiting line of a policy. It only says who is asked next; whether that
-- task may start is decided by the limits alone.
--
-- Between lanes it is start-time fair queueing (Goyal, Vin, Cheng 1996): each lane
-- with tasks to wake has a start tag; the lane with the smallest is served, its tag
-- is the virtual time then, and its next tag is larger by the share that its task
-- took, divided by its weight. A lane that comes back begins at the virtual time, or
-- at its own tag if that is later: idleness is no credit. A task's share is the
-- longest time that one of the shared limits takes to make up for its cost (the
-- dominant resource of Ghodsi et al. 2011).
--
-- Within a lane, tasks that are counted by the same keys form a row: first in, first
-- out. The rows of a lane are served by the age of their heads. A row whose own keys
-- are exhausted is held until they are not, and is in nobody's way.
--
-- An urgent task is taken to have come a day before it did. One that finds its
-- tokens asks for them whoever else of its row is in line; and where limits keep some
-- for such tasks, they are served from those when it is nobody else's turn.
--
-- A woken task has left its row and is expected to ask. Until it does, its ticket
-- remembers its place, and until when the wake is believed in.
--
-- Nobody can tell when a slot of a concurrency limit will be free, but how many are in
-- a while. So some tasks are woken ahead of that: when they ask they are told to stand
-- by, with a worker but without a slot. Whoever ends a lease hands it to the first of
-- them, and calls it. The ticket of one who stands by is its sign of life.
--
-- All keys begin with the line's own, KEYS[2]; tasks that are to stand in line by other
-- attributes have another one:
--   ""            "<virtual time>,<tasks>,<last place given>,<instant of the next wake>,
--                 <instant until which all keys are kept>"; missing: nobody is in line
--   /row:<row>    sorted set: "<costs>/<task>" by its place, the instant in us at which
--                 it came; costs are as "3,1", or nothing if all are 1; before them
--                 stands "!" if the task is urgent
--   /rows:<lane>  sorted set: rows that are not held, by the place of their heads;
--                 not kept where a lane has but one row
--   /ready        sorted set: lanes that have such rows, by start tag
--   /lanes        sorted set: other lanes' tags, as long as they are ahead
--   /held         sorted set: held rows, by the instant at which they are looked at
--   /lacking:<state key>
--                 sorted set: those of them that look as soon as something comes back
--                 there, by their lanes' tags
--   /weights      hash: the weights of lanes that have another than 1
--   /urgent       sorted set: rows that have urgent tasks, or had, by the place of one;
--                 where limits keep something
--   /woken        hash: "<costs>/<task>" to its ticket:
--                 "<place>,<until_us>,<times woken>,<share>,<turn>/<row>"; times woken is 0
--                 if it stands by, and turns are in the order of waking; a negative share
--                 and no row if it was recalled from another line
--   /standing:<state key>
--                 sorted set: "<free>,<cost>/<task>" of those who stand by for a slot there,
--                 by their turns; a slot is theirs if that much is free
--   /asked        hash: how often tasks were sent back into line that asked again
--   /leader       who wakes now
-- and one key is the policy's: "rm:{policy}/lines", a set of the keys of the lines that
-- have somebody in them, so that none is forgotten; it is kept for a month after a line
-- has begun, which is longer than any line should be.
--
-- A row is the values of its attributes as netstrings (Bernstein 1997), the lane's
-- first: "2:42,3:eu1,".
--
-- The `value` of a limit says which of them counts there, 0 for none.
--
-- ARGV begins with:
--   has_lane      1 if the first value of a row is its lane
--   one_row       1 if a lane has one row
local line = { has_lane = next_number() == 1, one_row = next_number() == 1 }

-- How much earlier than it did an urgent task is taken to have come.
local URGENT_US = 24 * 3600 * 1000000

-- Keys are kept for this much longer than the last task's backstop.
local KEPT_US = 24 * 3600 * 1000000
local LISTED_MS = '2678400000'

-- A tag as it is kept: never a whole number, for an embedded server writes 300000000 as
-- "3e+8", which its own Lua does not take for a number.
function line.tag_text(tag)
  return string.format('%.2f1', tag)
end

local function line_key(kind, name)
  return KEYS[2] .. '/' .. kind .. (name and ':' .. name or '')
end

do
  local text = raw[2]
  local v, count, last, wake_at, kept = string.match(text or '', '^([^,]+),(%d+),(%d+),(%d+),(%d+)$')
  line.is_there = v ~= nil
  line.virtual = tonumber(v or '0.001')
  line.count, line.last = tonumber(count or 0), tonumber(last or 0)
  line.wake_at, line.kept = tonumber(wake_at or 0), tonumber(kept or 0)
end

-- The values of a row's attributes.
local function values_of(row)
  local values, from = {}, 1
  while from <= #row do
    local colon = string.find(row, ':', from, true)
    local length = tonumber(string.sub(row, from, colon - 1))
    values[#values + 1] = string.sub(row, colon + 1, colon + length)
    from = colon + length + 2
  end
  return values
end

-- What a ticket says.
local function parse_ticket(text)
  local place, till, times, share, turn, row = string.match(text, '^(%d+),(%d+),(%d+),([^,]+),(%d+)/(.*)$')
  return { place = tonumber(place), till = tonumber(till), times = tonumber(times), share = tonumber(share),
    turn = tonumber(turn), row = row }
end

local function ticket_of(place, till, times, share, turn, row)
  return table.concat({ int(place), int(till), int(times), string.format('%.3f', share), int(turn) }, ',') .. '/' .. row
end

local function lane_of(row)
  return line.has_lane and values_of(row)[1] or ''
end

function line.is_urgent(member)
  return string.sub(member, 1, 1) == '!'
end

-- The costs of a member of a row, and its task.
local function parse_member(member)
  local slash = string.find(member, '/', 1, true)
  local costs = {}
  for cost in string.gmatch(string.sub(member, 1, slash - 1), '%d+') do
    costs[#costs + 1] = tonumber(cost)
  end
  for i = 1, #limits do
    costs[i] = costs[i] or 1
  end
  return costs, string.sub(member, slash + 1)
end

-- How a task stands by for a slot.
local function standing_member(asked, cost, who)
  return int(asked) .. ',' .. int(cost) .. '/' .. who
end

-- How long the limits take to make up for a task's costs: the slowest of those that
-- all rows share, and the slowest of all; on request only of those in which time alone
-- tells, which leaves out leases.
local function times_of(costs, by_time)
  local shared_us, slowest_us = 0, 0
  for i, limit in ipairs(limits) do
    local us = costs[i] * limit.period_us / limit.count
    if by_time and limit.algorithm.renew then
      us = 0
    end
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

-- The first instant, not before `from`, at which a request passes the limits at
-- these places, as a task of the line is to: evenly, even where a window is open
-- that has room for all at once. Infinite if none can be told, because a limit lacks
-- something that comes back with tasks, not with time; then also an instant at which
-- it may be there, and the limit.
local function paced_instant(places, own, costs, from, who)
  local at = from
  local moved
  repeat
    moved = false
    for _, i in ipairs(places) do
      local limit = limits[i]
      if costs[i] <= limit.capacity then
        local algorithm, state = limit.algorithm, own[i]
        local since = algorithm.spread == algorithm.earliest and now or 0
        local earliest = algorithm.spread(state, limit, costs[i], at, since, who)
        if algorithm.horizon and earliest > now
          and algorithm.horizon(state, limit, now, costs[i], who) <= earliest then
          return math.huge, earliest, i
        end
        if earliest > at then
          at, moved = earliest, true
        end
      end
    end
  until not moved or #places == 1
  return at, at
end

-- Lists the line, or takes it off the list.
function line.list(command)
  local lines = string.sub(KEYS[1], 1, -7) .. 'lines'
  redis.call(command, lines, KEYS[2])
  redis.call('PEXPIRE', lines, LISTED_MS)
end

-- Writes what has become of the line as a whole.
function line.save()
  line.kept = math.max(line.kept, now + KEPT_US)
  local numbers = { line.count, line.last, line.wake_at, line.kept }
  for i = 1, #numbers do
    numbers[i] = int(numbers[i])
  end
  redis.call('SET', KEYS[2], line.tag_text(line.virtual) .. ',' .. table.concat(numbers, ','),
    'PX', int(ttl_ms(line.kept - now)))
end

-- Makes a key of the line live as long as the line.
function line.keep(key)
  redis.call('PEXPIRE', key, int(ttl_ms(line.kept - now)))
end
