-- wake_write: writes what one call of wake has changed, key by key.

local write_line

do
  local function write(command, key, args)
    if #args > 0 then
      redis.call(command, key, unpack(args))
      if command ~= 'ZREM' and command ~= 'HDEL' then
        line.keep(key)
      end
    end
  end

  local function write_rows()
    for _, row in pairs(rows) do
      write('ZREM', row.key, row.popped)
    end
    for lane, list in pairs(line.one_row and {} or lane_rows) do
      local args = {}
      for name, place in pairs(list.written) do
        args[#args + 1], args[#args + 2] = int(place), name
      end
      write('ZREM', line_key('rows', lane), list.removed)
      write('ZADD', line_key('rows', lane), args)
    end
    write('ZADD', line_key('held'), held)
  end

  local function write_lanes()
    local removed, ready, other = {}, {}, {}
    for lane in pairs(gone) do
      removed[#removed + 1] = lane
    end
    for lane, tag in pairs(tags) do
      local args = gone[lane] and other or ready
      args[#args + 1], args[#args + 2] = line.tag_text(tag), lane
    end
    write('ZREM', line_key('ready'), removed)
    write('ZADD', line_key('ready'), ready)
    write('ZADD', line_key('lanes'), other)
  end

  function write_line()
    write_rows()
    write_lanes()
    write('HSET', line_key('woken'), tickets.written)
    write('HDEL', line_key('woken'), tickets.forgotten)
    local first_held = redis.call('ZRANGE', line_key('held'), 0, 0, 'WITHSCORES')
    if first_held[2] then
      waking.ask_again(math.max(now + waking.reach_us / 2, tonumber(first_held[2]) - waking.near_us))
    elseif #lanes == 0 and not lanes_left and not more_rows and tickets.expected == #tickets.forgotten then
      -- Nobody is in line any more.
      redis.call('DEL', KEYS[2], line_key('ready'), line_key('lanes'), line_key('urgent'), line_key('weights'),
        line_key('asked'), line_key('leader'))
      line.list('SREM')
      waking.next_at = 0
      return
    end
    redis.call('ZREMRANGEBYSCORE', line_key('lanes'), '-inf', line.tag_text(line.virtual))
    line.wake_at = waking.next_at
    line.save()
  end
end
