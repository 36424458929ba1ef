-- line_stand: tasks that lack a slot of a concurrency limit and stand by for one, with a
-- worker; see parts/line.lua. Comes behind parts/line_join.lua.

-- How long who stands by is believed to be there, after each sign of life.
local STOOD_US = 3000000

-- A task that stood by is asking, and does so no more where no slot was handed to it.
function line.step_down(task, own, costs, who)
  for i, limit in ipairs(task.is_next and limits or {}) do
    if limit.algorithm.hand and not limit.algorithm.has(own[i], costs[i], now, who) then
      local key, member = line_key('standing', own[i].key), standing_member(i, task.row, costs, task.name)
      task.turn = tonumber(redis.call('ZSCORE', key, member) or task.turn)
      redis.call('ZREM', key, member)
    end
  end
end

-- Who finds a slot free that was not handed to it leaves it to those who stand by, so
-- that one that needs more of them gets them in the end. Returns the limit at which
-- that leaves none, or nil.
function line.behind_standing(task, own, asked, costs, who)
  if not line.is_there or task.row.urgent then
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
  for i, limit in ipairs(task.is_next and limits or {}) do
    if limit.algorithm.hand and limit.algorithm.let_go(own[i], now, who) then
      own[i].changed = true
      signal(now)
    end
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
  if task.is_next then
    return true
  end
  return wait_us > 0 and size_of(task.row) == 0
    and (line.count == 0 or tag_of(task.row.lane) <= line.virtual)
end

-- A task stands by for a slot of a limit. One that has only just come takes a place in
-- line, and pays for its share. Returns 4, the instant at which the slot is free at the
-- latest, its position and its place.
function line.stand(task, own, costs, at, held_by)
  local row, lane, place = task.row, task.row.lane, task.place or task.came or came_at(task.row)
  line.keep_until(now)
  if not line.is_there then
    line.list('SADD')
    line.is_there = true
  end
  if not task.place then
    line.last = math.max(line.last, since(row, place))
    line.virtual = math.max(line.virtual, tag_of(lane))
    move_tag(lane, share_of(costs, row.weight))
  end
  changed = true
  stood_places[#stood_places + 1], stood_places[#stood_places + 2] = task.name, int(place)
  write('ZADD', line_key('standing', own[held_by].key),
    { int(task.turn or tonumber(redis.call('ZSCORE', line_key('woken'), task.name) or place)), standing_member(held_by, row, costs, task.name) })
  stood[#stood + 1], stood[#stood + 2] = int(now + STOOD_US), task.name
  if line.wake_at == 0 then
    signal(now)
  end
  return 4, at, 1, since(row, place)
end
