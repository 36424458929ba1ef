-- line_stand: tasks that lack a slot of a concurrency limit and stand by for one, with a
-- worker; see parts/line.lua. Comes behind parts/line_join.lua and line_hand.lua.

-- How long after each sign of life who stands by is there for certain, and how long it is
-- kept.
local STOOD_US, STOOD_MS = 3000000, '6000'

-- Those who begin to stand by in this call, or still do: members with their turns, by keys.
local stood = {}

-- A task does not stand by any more: it starts, or goes back into line.
function line.step_down(task, own, costs)
  for i, limit in ipairs(task.came and limits or {}) do
    if limit.algorithm.hand then
      redis.call('ZREM', line_key('standing', own[i].key), standing_member(i, task.row, costs, task.name))
    end
  end
end

-- Who finds a slot free that was not handed to it leaves it to those who stand by, so
-- that one that needs more of them gets them in the end. Returns the limit at which
-- that leaves none, or nil.
function line.behind_standing(task, own, asked, costs, who)
  if task.row.urgent then
    return nil
  end
  local last = task.came and '(' .. int(task.came) or '+inf'
  for i, limit in ipairs(limits) do
    local algorithm, state = limit.algorithm, own[i]
    if algorithm.hand and not algorithm.has(state, costs[i], now, who) and algorithm.is_stood_for(state, now) then
      local handed, stand_by = hand_slots(KEYS[2], state.key, limit, state, standing_at(KEYS[2], state.key, last), 0)
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

-- A task stands by for a slot of a limit, and nowhere else: it leaves its row, and comes
-- back to its place there with the request that tells of it. One that has only just come
-- while others are in line pays for its share. Returns 4, the instant at which the slot is
-- free at the latest, its position and its place.
function line.stand(task, own, costs, at, held_by)
  local row, state = task.row, own[held_by]
  local place = task.place or task.came or came_at(row)
  if task.place then
    leave(task)
  elseif not task.came then
    line.last = math.max(line.last, since(row, place))
    if line.count > 0 then
      changed = true
      line.virtual = math.max(line.virtual, tag_of(row.lane))
      move_tag(row.lane, share_of(costs, row.weight))
    end
  end
  local key = line_key('standing', state.key)
  stood[key] = stood[key] or {}
  table.insert(stood[key], int(place))
  table.insert(stood[key], standing_member(held_by, row, costs, task.name))
  if limits[held_by].algorithm.stand(state, now, STOOD_US) then
    state.changed = true
  end
  return 4, at, 1, since(row, place)
end

-- Writes who stands by, and calls those to whom slots were handed.
function line.finish_standing()
  for key, members in pairs(stood) do
    redis.call('ZADD', key, 'LT', unpack(members))
    redis.call('PEXPIRE', key, STOOD_MS)
  end
  call_handed()
end
