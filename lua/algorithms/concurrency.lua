-- concurrency: at most `count` cost at once. What a task takes is a lease: renewed
-- while the task runs, ended with it, and run out `period_us` after the last sign
-- of life of a process that died.
--
-- A lease has a holder, `who`. Who asks again while holding one enters it again,
-- even when nothing is free: a redelivered task must not be refused its own slot.
-- From then on it is the later one's alone. The instant at which a lease was
-- taken, its birth, tells them apart, so that a process that was only asleep can
-- neither renew nor end what another has taken over.
--
-- There are no slots ahead, for nobody knows when a task will end. What a denied
-- request hears is when enough leases run out if nobody renews them. Where another
-- limit puts a slot ahead, its lease is taken at once and runs until slot +
-- period_us.
--
-- Other numbers leave leases as they are, because each is a running task: with
-- fewer slots nobody gets one until enough have ended. A lease has its new length
-- when it is next renewed.
--
-- A clock set back would keep a dead task's lease for as long again. So whoever next
-- takes or renews one cuts every lease that was born later than now to one period from
-- now.
--
-- State: a sorted set. A lease stands at its end; what else is known of it stands
-- below zero, out of the way:
--   "h:<who>"  end_us
--   "b:<who>"  -born_us
--   "c:<who>"  -cost, if above 1
--   "more"     -(the sum of cost - 1 over all leases kept), if above 0
-- Leases that ran out are cleared away by whoever next takes or renews one, MOST_LEASES
-- at a time; those that it leaves still count by what they cost above 1.
local concurrency = {}

-- How many leases one call clears away or looks through, at most.
local MOST_LEASES = 300

local function score_of(key, member)
  return tonumber(redis.call('ZSCORE', key, member) or 0)
end

-- The cost of a lease that is kept in Redis.
local function cost_kept(state, who)
  return state.more > 0 and math.max(1, -score_of(state.key, 'c:' .. who)) or 1
end

-- Members and scores of leases that end after `from` and not after `to`.
local function leases_between(key, from, to, most)
  return redis.call('ZRANGEBYSCORE', key, '(' .. from, to, 'WITHSCORES', 'LIMIT', 0, most)
end

local function holder(member)
  return string.sub(member, 3)
end

function concurrency.load(raw, _, now, key)
  local state = { key = key, used = 0, more = 0, kept = {}, changes = {}, run_out = {} }
  local live = not raw and redis.pcall('ZCOUNT', key, '(' .. int(now), '+inf')
  if type(live) ~= 'number' then
    state.is_foreign = true
    live = 0
  end
  state.live = live
  if live > 0 then
    state.more = -score_of(key, 'more')
    state.used = live + state.more
    if state.more > 0 then
      local ended = leases_between(key, 0, int(now), MOST_LEASES)
      for i = 1, #ended, 2 do
        state.used = state.used - (cost_kept(state, holder(ended[i])) - 1)
      end
    end
  end
  return state
end

-- The lease that `who` holds, or false. In a copy, in which those in line are served,
-- nobody is looked up: who holds a lease is not in line.
local function lease_of(state, who, now)
  if state.changes[who] ~= nil then
    return state.changes[who]
  end
  if state.kept[who] == nil then
    local scores = state.live > 0 and not state.is_copy and redis.call('ZMSCORE', state.key, 'h:' .. who, 'b:' .. who, 'c:' .. who) or {}
    local ends = tonumber(scores[1] or 0)
    state.kept[who] = ends > now
      and { ends = ends, born = -tonumber(scores[2] or 0), cost = math.max(1, -tonumber(scores[3] or 0)) }
  end
  return state.kept[who]
end

-- Puts a lease in the place of what `who` held; false for none. Nothing is written
-- before save, so that another limit's trouble leaves this one alone.
local function put(state, who, held, lease)
  state.used = state.used + (lease and lease.cost or 0) - (held and held.cost or 0)
  state.changes[who] = lease
  state.run_out = {}
  if held and state.last and held.ends >= state.last then
    state.last = nil
  elseif lease and state.last then
    state.last = math.max(state.last, lease.ends)
  end
end

-- How much of what others hold must end before a cost fits; none if it fits now.
local function lacking(state, limit, cost, held)
  local own = held and held.cost or 0
  if own >= cost then
    return 0
  end
  return math.max(0, state.used - own + cost - limit.count)
end

-- Whether a lease is there for it.
function concurrency.has(state, cost, now, who)
  local held = lease_of(state, who, now)
  return held and held.cost >= cost
end

-- The leases that could end first, enough of them to free a cost, by their ends.
local function first_to_end(state, cost, who, now)
  local leases, changed = {}, 0
  for other, lease in pairs(state.changes) do
    changed = changed + 1
    if lease and other ~= who then
      leases[#leases + 1] = lease
    end
  end
  local kept = leases_between(state.key, int(now), '+inf', int(cost + changed + 1))
  for i = 1, #kept, 2 do
    local other = holder(kept[i])
    if other ~= who and state.changes[other] == nil then
      leases[#leases + 1] = { ends = tonumber(kept[i + 1]), cost = cost_kept(state, other) }
    end
  end
  table.sort(leases, function(a, b)
    return a.ends < b.ends
  end)
  return leases
end

-- The instant at which that much of what others than `who` hold has run out. For
-- more than can be looked through it takes each lease to cost 1, which is never
-- too early.
local function run_out(state, cost, who, now)
  if cost > MOST_LEASES then
    local place = redis.call('ZCOUNT', state.key, '-inf', int(now)) + math.min(cost, state.live) - 1
    return tonumber(redis.call('ZRANGE', state.key, int(place), int(place), 'WITHSCORES')[2])
  end
  for _, lease in ipairs(first_to_end(state, cost, who, now)) do
    cost = cost - lease.cost
    if cost <= 0 then
      return lease.ends
    end
  end
end

function concurrency.earliest(state, limit, cost, from, now, who)
  local held = lease_of(state, who, now)
  local short = lacking(state, limit, cost, held)
  if short == 0 then
    return from
  end
  local at = not held and state.run_out[short] or run_out(state, short, who, now)
  if not held then
    state.run_out[short] = at
  end
  return math.max(from, at or from + limit.period_us)
end

concurrency.spread = concurrency.earliest

-- What does not fit now gets no slot ahead: the leases that ought to have run out
-- by then may have been renewed.
function concurrency.horizon(state, limit, now, cost, who)
  return lacking(state, limit, cost, lease_of(state, who, now)) == 0 and math.huge or now
end

function concurrency.take(state, limit, cost, at, now, who)
  local held = lease_of(state, who, now)
  local born = held and math.max(now, held.born + 1) or now
  put(state, who, held, { ends = at + limit.period_us, born = born, cost = cost })
  state.clears = true
  return born, 0
end

-- Hands a slot that is free to one who stands by for it, as a lease that lasts only
-- until `ends`: time enough to ask, which makes it one like others. `asked` is what has
-- to be free. Tells whether it was.
function concurrency.hand(state, limit, asked, cost, now, who, ends)
  if lacking(state, limit, asked) > 0 then
    return false
  end
  put(state, who, nil, { ends = ends, born = now, cost = cost })
  return true
end

-- Ends the lease that `who` holds, and tells whether there was one.
function concurrency.let_go(state, now, who)
  local held = lease_of(state, who, now)
  if not held then
    return false
  end
  put(state, who, held, false)
  return true
end

-- A lease that ran out comes back if there is room, because its task still runs.
function concurrency.renew(state, limit, cost, now, born, who)
  local held = lease_of(state, who, now)
  if held and held.born ~= born or not held and lacking(state, limit, cost, held) > 0 then
    return false
  end
  put(state, who, held, { ends = now + limit.period_us, born = born, cost = held and held.cost or cost })
  state.clears = true
  return true
end

-- Who starts after the end of the lease starts without one.
function concurrency.use_by(_, limit, at)
  return at + limit.period_us
end

-- When the last lease runs out.
local function last_end(state, now)
  local last, changed = now, 0
  for _, lease in pairs(state.changes) do
    changed = changed + 1
    last = math.max(last, lease and lease.ends or 0)
  end
  local kept = state.live > 0 and redis.call('ZREVRANGE', state.key, 0, changed, 'WITHSCORES') or {}
  for i = 1, #kept, 2 do
    if state.changes[holder(kept[i])] == nil then
      return math.max(last, tonumber(kept[i + 1]))
    end
  end
  return last
end

function concurrency.status(state, limit, now)
  state.last = state.last or last_end(state, now)
  return math.max(0, limit.count - state.used), state.last - now
end

-- Cuts the leases that were born later than now; see above.
local function cut(key, limit, now)
  local most = now + limit.period_us
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', '(-' .. int(now), 'LIMIT', 0, MOST_LEASES)) do
    local lease = 'h:' .. holder(member)
    if score_of(key, lease) > most then
      redis.call('ZADD', key, int(most), lease)
    end
  end
end

-- Calls a command on a key with any number of arguments, as many at a time as Lua
-- can unpack for certain.
local function call_with(command, key, arguments)
  local most = 1000
  for i = 1, #arguments, most do
    redis.call(command, key, unpack(arguments, i, math.min(i + most - 1, #arguments)))
  end
end

function concurrency.save(state, limit, now, key)
  local more, removed, added = state.more, {}, {}
  local function remove(who)
    more = more - (cost_kept(state, who) - 1)
    for _, kind in ipairs({ 'h:', 'b:', 'c:' }) do
      removed[#removed + 1] = kind .. who
    end
  end
  local function add(score, member)
    added[#added + 1], added[#added + 2] = int(score), member
  end

  if state.live == 0 then
    redis.call('UNLINK', key)
  elseif state.clears then
    cut(key, limit, now)
    local ended = leases_between(key, 0, int(now), MOST_LEASES)
    for i = 1, #ended, 2 do
      if state.changes[holder(ended[i])] == nil then
        remove(holder(ended[i]))
      end
    end
  end
  for who, lease in pairs(state.changes) do
    if not lease or state.more > 0 then
      remove(who)
    end
    if lease then
      add(lease.ends, 'h:' .. who)
      add(-lease.born, 'b:' .. who)
      if lease.cost > 1 then
        add(-lease.cost, 'c:' .. who)
        more = more + lease.cost - 1
      end
    end
  end
  if more > 0 then
    add(-more, 'more')
  elseif state.more > 0 then
    removed[#removed + 1] = 'more'
  end

  call_with('ZREM', key, removed)
  call_with('ZADD', key, added)
  local last = state.last or tonumber(redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2] or 0)
  if last > now then
    redis.call('PEXPIRE', key, int(ttl_ms(last - now)))
  else
    redis.call('UNLINK', key)
  end
end
