-- wake_lanes: the lanes of the line by their tags, and for each the rows that may be
-- served, by the age of their heads; read page by page, as far as one call of wake
-- comes.

-- Rows that are held, of which one call lets so many join their lanes again.
local MOST_HELD = 64

-- What is read and not served yet; and whether the line has more.
local lanes, lanes_left = {}, true
-- By name: the rows of lanes, their tags that were changed, and lanes without a row.
local lane_rows, tags, gone = {}, {}, {}
local read_lanes, insert_lane, rows_of, remove_row, replace_row, let_held_rows_join

do
  local lanes_read, read_to = 0, nil

  function insert_lane(lane, tag)
    local place = #lanes + 1
    while place > 1 and lanes[place - 1].tag > tag do
      place = place - 1
    end
    table.insert(lanes, place, { name = lane, tag = tag })
  end

  function read_lanes()
    while lanes_left and (#lanes == 0 or lanes_read > 0 and lanes[1].tag > read_to) do
      local page = redis.call('ZRANGE', line_key('ready'), int(lanes_read), int(lanes_read + PAGE - 1), 'WITHSCORES')
      for i = 1, #page, 2 do
        read_to = tonumber(page[i + 1])
        insert_lane(page[i], read_to)
      end
      lanes_read = lanes_read + #page / 2
      lanes_left = #page == 2 * PAGE
    end
  end

  function rows_of(lane)
    local list = lane_rows[lane]
    if not list then
      list = { written = {}, removed = {} }
      if line.one_row then
        local name = line.has_lane and #lane .. ':' .. lane .. ',' or ''
        list[1] = { name = name, place = 0 }
      else
        local page = redis.call('ZRANGE', line_key('rows', lane), 0, PAGE - 1, 'WITHSCORES')
        for i = 1, #page, 2 do
          list[#list + 1] = { name = page[i], place = tonumber(page[i + 1]) }
        end
        list.more = #page == 2 * PAGE
      end
      lane_rows[lane] = list
    end
    return list
  end

  -- The first row is no more among those of its lane that may be served.
  function remove_row(list)
    local removed = table.remove(list, 1)
    list.removed[#list.removed + 1] = removed.name
    list.written[removed.name] = nil
  end

  -- The first row has another head now.
  function replace_row(list, place)
    local row = table.remove(list, 1)
    row.place = place
    local at = #list + 1
    while at > 1 and list[at - 1].place > place do
      at = at - 1
    end
    table.insert(list, at, row)
    list.written[row.name] = place
  end

  -- Held rows whose time has come join their lanes.
  function let_held_rows_join()
    local ready = redis.call('ZRANGEBYSCORE', line_key('held'), '-inf', int(waking.reach), 'LIMIT', 0, MOST_HELD)
    if #ready == 0 then
      return
    end
    redis.call('ZREM', line_key('held'), unpack(ready))
    local arrivals, arrived = {}, {}
    for _, name in ipairs(ready) do
      local row = row_named(name)
      local member, place = head_of(row)
      if member then
        if not line.one_row then
          redis.call('ZADD', line_key('rows', row.lane), int(place), name)
        end
        if not arrived[row.lane] then
          arrived[row.lane] = true
          arrivals[#arrivals + 1] = row.lane
        end
      end
    end
    if #arrivals == 0 then
      return
    end
    local before = redis.call('ZMSCORE', line_key('lanes'), unpack(arrivals))
    local args = {}
    for i, lane in ipairs(arrivals) do
      args[#args + 1] = line.tag_text(math.max(line.virtual, tonumber(before[i] or 0)))
      args[#args + 1] = lane
    end
    redis.call('ZADD', line_key('ready'), 'NX', unpack(args))
    redis.call('ZREM', line_key('lanes'), unpack(arrivals))
  end
end
