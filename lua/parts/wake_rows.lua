-- wake_rows: the rows of the line, as far as one call of wake looks at them, and the
-- copies of the limits' states in which their tasks are served. Rows that share a key
-- share its copy.

-- What the call was told, and what it will answer; see wake.lua.
local waking = { state_keys = {}, woken = {}, next_at = now + 1000000 }

function waking.ask_again(at)
  waking.next_at = math.min(waking.next_at, math.max(now, at))
end

-- Rows and lanes are read this many at a time.
local PAGE = 64

-- Of the limits, by their places: all of them, and those that count for each row alone.
local all_places, own_places = {}, {}
for i = 1, #limits do
  all_places[i] = i
  if limits[i].value > 0 then
    own_places[#own_places + 1] = i
  end
end

-- The rows by name.
local rows = {}
local row_named, key_of, head_of, take_in_copies

do
  local copies = {}

  -- The state key of a limit for a row.
  function key_of(i, row)
    local value = row.values[limits[i].value] or ''
    return value == '' and waking.state_keys[i] or waking.state_keys[i] .. ':' .. value
  end

  local function copy_of(i, row)
    local key = key_of(i, row)
    if not copies[key] then
      copies[key] = load_state(redis.call('MGET', key)[1], limits[i], key)
      copies[key].is_copy = true
    end
    return copies[key]
  end

  function row_named(name)
    local row = rows[name]
    if not row then
      row = { name = name, values = values_of(name), own = {}, key = line_key('row', name), popped = {}, page = {}, at = 1 }
      row.lane = line.has_lane and row.values[1] or ''
      for i = 1, #limits do
        row.own[i] = copy_of(i, row)
      end
      rows[name] = row
    end
    return row
  end

  -- The first task of a row and its place, or nil.
  function head_of(row)
    local member = row.page[row.at]
    if not member and not row.is_read then
      local from = #row.popped
      local size = from == 0 and 4 or PAGE
      row.page = redis.call('ZRANGE', row.key, from, from + size - 1, 'WITHSCORES')
      row.at, row.is_read = 1, #row.page < 2 * size
      member = row.page[1]
    end
    return member, tonumber(row.page[row.at + 1])
  end

  -- Takes costs from the copies of a row at these places.
  function take_in_copies(places, row, costs, at, who)
    for _, i in ipairs(places) do
      if costs[i] <= limits[i].capacity then
        limits[i].algorithm.take(row.own[i], limits[i], costs[i], at, now, who)
      end
    end
  end
end
