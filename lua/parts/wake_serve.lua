-- wake_serve: serves the lanes in the order of their tags, as long as a task gets its
-- slot in time, or is to stand by for one.

-- Rows that are to be held, by the instants at which they are looked at.
local held = {}
-- Lanes that have more rows than were read, which the next call sees.
local more_rows = false
local serve_lanes, serve_urgent_rows

do
  -- Who holds a slot for longer than this leaves it empty for less than a hundredth
  -- of that, until the next one is woken.
  local LONG_US = 10000000

  local weights, any_weights = {}, redis.call('EXISTS', line_key('weights')) == 1
  local function weight_of(lane)
    if not weights[lane] then
      weights[lane] = any_weights and tonumber(redis.call('HGET', line_key('weights'), lane) or 1) or 1
    end
    return weights[lane]
  end

  -- Wakes the first task of a row, which is to be there at that instant.
  local function wake_first(lane, row, member, place, costs, at)
    local share = share_of(costs, weight_of(lane.name))
    lane.tag = math.max(line.virtual, lane.tag) + share
    tags[lane.name] = lane.tag
    row.popped[#row.popped + 1] = member
    row.at = row.at + 2
    local turn = now + #waking.woken - (line.is_urgent(member) and URGENT_US or 0)
    tickets.write(member, { place = place, till = at + waking.believe_us, times = 1, share = share, turn = turn, row = row.name })
    waking.woken[#waking.woken + 1] = member
    tickets.expected, line.count = tickets.expected + 1, math.max(0, line.count - 1)
    waking.ask_again(at + waking.believe_us)
  end

  -- How many may stand by for slots of a limit: as many as will be free by the time
  -- that others could be there.
  local function most_standing(limit)
    if waking.hold_us == 0 or waking.hold_us > LONG_US then
      return 0
    end
    return math.ceil(limit.count * (waking.near_us + waking.reach_us) / waking.hold_us)
  end

  -- When those who stand by for slots of a limit are to be looked at: when a quarter of
  -- them has gone.
  local function look_again_us(limit)
    return math.max(waking.reach_us, most_standing(limit) * waking.hold_us / limit.count / 4)
  end

  -- Wakes the first task of a row to stand by for a slot that it lacks at that limit, if
  -- there is room. Returns whether it did.
  local function wake_to_stand(lane, row, member, place, costs, lacks)
    local key, limit = key_of(lacks, row), limits[lacks]
    if not limit.algorithm.hand or (standing[key] or 0) >= most_standing(limit) or all_standing >= waking.most_standing then
      return false
    end
    note_standing(key)
    line.virtual = math.max(line.virtual, lane.tag)
    wake_first(lane, row, member, place, costs, now + waking.near_us)
    waking.ask_again(now + look_again_us(limit))
    return true
  end

  -- Holds the first row of a lane, which lacks what comes back with tasks, at that
  -- limit, or if that is nil what comes back with time.
  local function hold(lane, list, row, look_at, lacks)
    local stands = lacks and (standing[key_of(lacks, row)] or 0) > 0
    if stands then
      look_at = waking.reach + look_again_us(limits[lacks])
      waking.ask_again(look_at - waking.reach + now)
    elseif lacks then
      look_at = math.max(look_at, waking.reach + 1000000)
      local lacking = line_key('lacking', key_of(lacks, row))
      redis.call('ZADD', lacking, line.tag_text(lane.tag), row.name)
      line.keep(lacking)
    end
    held[#held + 1], held[#held + 2] = int(look_at), row.name
    remove_row(list)
    return #held < 2 * MOST_HELD
  end

  -- The next task is asked for its slot: woken, or held with its row, or all have to
  -- wait for what they share. Returns whether to go on.
  local function serve(lane, list, row, member, place)
    local costs, who = parse_member(member)
    local asked = asked_for(costs, row.own, line.is_urgent(member), who)
    local reach, opens = waking.reach, waking.opens
    local at, look_at, lacks = paced_instant(own_places, row.own, asked, opens, who)
    if at > reach and opens <= reach then
      if at < math.huge then
        take_in_copies(own_places, row, costs, at, who)
      elseif wake_to_stand(lane, row, member, place, costs, lacks) then
        return true
      end
      return hold(lane, list, row, look_at, lacks)
    end
    at, look_at, lacks = paced_instant(all_places, row.own, asked, math.max(opens, math.min(at, reach)), who)
    if at > reach then
      if lacks and opens <= reach and wake_to_stand(lane, row, member, place, costs, lacks) then
        return true
      end
      local looks = lacks and standing[key_of(lacks, row)] and look_again_us(limits[lacks])
      waking.ask_again(looks and now + looks or math.max(now + waking.reach_us, look_at - waking.near_us))
      return false
    end
    line.virtual = math.max(line.virtual, lane.tag)
    take_in_copies(all_places, row, costs, at, who)
    wake_first(lane, row, member, place, costs, at)
    return true
  end

  -- Serves the first row of a lane. Returns whether to go on.
  local function serve_row(lane, list)
    local first = list[1]
    local row = row_named(first.name)
    local member, place = head_of(row)
    if not member then
      remove_row(list)
      return true
    end
    local goes_on = serve(lane, list, row, member, place)
    if list[1] == first then
      local left, next_place = head_of(row)
      if not left then
        remove_row(list)
      elseif not line.one_row then
        replace_row(list, next_place)
      end
    end
    return goes_on
  end

  -- A lane that was served comes back with its new tag, if it has another row.
  local function put_back(lane, list)
    if list[1] then
      insert_lane(lane.name, lane.tag)
      return
    end
    tags[lane.name] = lane.tag
    if list.more then
      more_rows = true
      waking.ask_again(now)
    else
      gone[lane.name] = true
    end
  end

  function serve_lanes()
    read_lanes()
    while #lanes > 0 do
      if #waking.woken >= MOST_WOKEN or tickets.expected >= MOST_EXPECTED then
        waking.ask_again(now + (tickets.expected >= MOST_EXPECTED and waking.near_us or 0))
        return
      end
      local lane = table.remove(lanes, 1)
      local list = rows_of(lane.name)
      local goes_on = not list[1] or serve_row(lane, list)
      put_back(lane, list)
      if not goes_on then
        return
      end
      read_lanes()
    end
  end

  -- How many rows with urgent tasks one call looks at.
  local MOST_ROWS = 16

  local function serve_urgent(row)
    local tag = tags[row.lane] or redis.call('ZSCORE', line_key('ready'), row.lane)
    if not tag or gone[row.lane] then
      return
    end
    local lane = { name = row.lane, tag = tonumber(tag) }
    while #waking.woken < MOST_WOKEN do
      local member, place = head_of(row)
      if not member or not line.is_urgent(member) then
        redis.call('ZREM', line_key('urgent'), row.name)
        return
      end
      local costs, who = parse_member(member)
      local at, look_at = paced_instant(all_places, row.own, costs, waking.opens, who)
      if at > waking.reach then
        waking.ask_again(math.max(now + waking.reach_us, look_at - waking.near_us))
        return
      end
      take_in_copies(all_places, row, costs, at, who)
      wake_first(lane, row, member, place, costs, at)
    end
  end

  -- The urgent tasks of rows are served out of their lanes' turn, from what is kept for
  -- them.
  function serve_urgent_rows()
    if not kept then
      return
    end
    for _, name in ipairs(redis.call('ZRANGE', line_key('urgent'), 0, MOST_ROWS - 1)) do
      serve_urgent(row_named(name))
    end
  end
end
