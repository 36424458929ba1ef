-- line_stand: tasks that lack a slot of a concurrency limit and stand by for one, with a
-- worker; see parts/line.lua. Comes behind parts/line_join.lua.
do

-- How long who stands by is believed to be there, after each sign of life.
local STOOD_US = 3000000

-- A task that stood by is asking, and does so no more where no slot was handed to it.
function line.step_down(task, own, asked, costs, who)
  for i, limit in ipairs(task.stands and limits or {}) do
    if limit.algorithm.hand and not limit.algorithm.has(own[i], costs[i], now, who) then
      redis.call('ZREM', line_key('standing', own[i].key), standing_member(asked[i], costs[i], who))
    end
  end
end

-- Who finds a slot free that was not handed to it leaves it to those who stand by, so
-- that one that needs more of them gets them in the end. Returns the limit at which
-- that leaves none, or nil.
function line.behind_standing(task, own, asked, costs, who)
  if not line.is_there or task.urgent then
    return nil
  end
  local last = task.turn and '(' .. int(task.turn) or '+inf'
  for i, limit in ipairs(limits) do
    local algorithm, state = limit.algorithm, own[i]
    if algorithm.hand and not algorithm.has(state, costs[i], now, who) then
      local handed, stand_by = hand_slots(KEYS[2], state.key, limit, state, last, 0)
      if stand_by or handed > 0 and algorithm.earliest(state, limit, asked[i], now, now, who) > now then
        return i
      end
    end
  end
end

-- A task does not start: slots that were handed to it go back.
function line.let_go(task, own, who)
  local freed = false
  for i, limit in ipairs(task.stands and limits or {}) do
    if limit.algorithm.hand and limit.algorithm.let_go(own[i], now, who) then
      own[i].changed, freed = true, true
    end
  end
  if freed then
    redis.call('PUBLISH', line_key('signal'), '')
  end
end

-- Whether a task that lacks something of a limit is to stand by for it: its turn has
-- come, or would if it joined the line, and its worker waits for it anyway. It has to
-- be known there by the name that it is called by.
function line.may_stand(task, held_by, wait_us, who)
  if not task.may_stand or held_by < 1 or not limits[held_by].algorithm.hand
    or string.sub(task.member, -#who - 1) ~= '/' .. who then
    return false
  end
  if task.is_recalled or not task.place and wait_us == 0 then
    return false
  elseif task.place then
    return true
  end
  local row = line_row(task.row)
  return row.size == 0 and (line.count == 0 or line_tag(row.lane).value <= line.virtual)
end

-- Serves a task that has only just come: it takes a place, and pays for its share.
local function serve_at_once(task, costs)
  local lane = line_row(task.row).lane
  local came = came_at()
  task.place = task.urgent and came - URGENT_US or came
  task.turn, task.share = task.place, share_of(costs, task.weight)
  line.last, line.virtual = came, math.max(line.virtual, line_tag(lane).value)
  line.is_there, joined = true, true
  move_tag(lane, task.share)
end

-- A task stands by for a slot of a limit. Returns 4, the instant at which the slot is
-- free at the latest, its position and its place.
function line.stand(task, own, asked, costs, at, held_by, who)
  local key = line_key('standing', own[held_by].key)
  line.kept = math.max(line.kept, now + KEPT_US)
  local is_new = not task.turn
  if not line.is_there then
    line.list('SADD')
  end
  if task.place and is_new then -- it had a slot before
    task.turn, task.share, line.is_there, joined = task.place, share_of(costs, task.weight), true, true
  elseif is_new then
    serve_at_once(task, costs)
  end
  redis.call('ZADD', key, int(task.turn), standing_member(asked[held_by], costs[held_by], who))
  line.keep(key)
  redis.call('HSET', line_key('woken'), task.member,
    ticket_of(task.place, now + STOOD_US, 0, task.share, task.turn, task.row))
  if is_new then
    line.keep(line_key('woken'))
    if line.wake_at == 0 then
      signal(now)
    end
  end
  return 4, at, 1, task.urgent and task.place + URGENT_US or task.place
end

end
