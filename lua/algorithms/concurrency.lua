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
-- A clock set back would keep a dead task's lease for as long again. So the next call
-- that changes a lease cuts every one that was born later than now to one period from
-- now.
--
-- State: a sorted set. A lease stands at its end; all else stands below zero, out of
-- the way:
--   "h:<who>"  end_us
--   "b:<who>"  -born_us
--   "c:<who>"  -cost
-- and what one would have to read all leases to know:
--   "used"     -(what they cost)
--   "first"    -(an instant before which none of them ends)
--   "last"     -(an instant after which none of them ends)
--   "loose"    -1 if that is later than the last of them ends, for that one has ended
--   "newest"   -(an instant after which none of them was born)
--   "standing" -(an instant until which somebody may stand by for a slot; see
--              parts/line_stand.lua)
-- So a call reads once, for hundreds of tasks, and writes once. What has ended is written to
-- stand at 0, and one call in so many sweeps it out. Leases that ran out are cleared
-- away by the next call that writes, MOST_LEASES at a time; those that it leaves still
-- count by what they cost above 1.
local concurrency = {}

-- How many leases one call clears away, cuts or looks through, at most.
local MOST_LEASES = 300
-- One call in so many sweeps out what has ended.
local SWEEP_ONE_IN = 32
-- The key lives until the second is over in which the last lease ends, or nobody is
-- noted any more: its life is made longer once in a second, and not by every call.
local KEPT_US = 1000000

-- Scores without their signs, 0 for what is not there.
local function scores_of(state, members)
  local scores = redis.pcall('ZMSCORE', state.key, unpack(members))
  state.is_foreign = state.is_foreign or scores.err ~= nil
  for i = 1, #members do
    scores[i] = math.abs(scores[i] or 0)
  end
  return scores
end

-- Leases in the order of their ends, as this call leaves them: `most` of the set's, after
-- some that are skipped, and those that this call has put. What they cost is told on
-- request.
local function leases_by(command, state, from, to, skipped, most, with_costs)
  local found = redis.call(command, state.key, from, to, 'WITHSCORES', 'LIMIT', int(skipped), int(most + state.puts))
  local leases, members = {}, {}
  for i = 1, #found, 2 do
    local who = string.sub(found[i], 3)
    if not (state.leases[who] and state.leases[who].is_put) then
      leases[#leases + 1], members[#members + 1] = { who = who, ends = found[i + 1] + 0, cost = 1 }, 'c:' .. who
    end
  end
  for i, cost in ipairs(with_costs and #leases > 0 and scores_of(state, members) or {}) do
    leases[i].cost = cost
  end
  for _, lease in pairs(state.leases) do
    if lease.is_put then
      leases[#leases + 1] = lease
    end
  end
  table.sort(leases, function(a, b)
    return a.ends < b.ends
  end)
  return leases
end

-- Puts a lease in the place of the one that is known of `who`; without numbers, none.
-- Nothing is written before save, so that another limit's trouble leaves this one alone.
local function put(state, who, ends, born, cost)
  local before = state.leases[who]
  local lease = { who = who, ends = ends or 0, born = born or 0, cost = cost or 0, is_put = true }
  state.leases[who], state.puts, state.run_out = lease, state.puts + 1, {}
  state.used, state.newest = state.used + lease.cost - before.cost, math.max(state.newest, lease.born)
  state.first = math.min(state.first, ends or math.huge)
  if lease.ends >= state.last then
    state.last, state.loose = lease.ends, 0
  elseif before.ends == state.last then
    state.loose = 1
  end
end

-- Takes over what scores tell of all leases, and ends those that ran out. What is left
-- of these stays in the set, but does not count; see above.
local function read(state, scores, now)
  state.used, state.first, state.last, state.loose, state.newest, state.standing = unpack(scores, 1, 6)
  state.was_empty, state.left = state.used == 0, 0
  state.was_kept = math.ceil(math.max(state.last, state.standing) / KEPT_US)
  if state.was_empty then
    state.first = math.huge
  elseif state.first <= now then
    state.first = leases_by('ZRANGEBYSCORE', state, '(0', '+inf', 0, 1)[1].ends
  end
  if state.first <= now then
    local ended = leases_by('ZRANGEBYSCORE', state, '(0', int(now), 0, MOST_LEASES, true)
    for _, lease in ipairs(ended) do
      state.leases[lease.who] = lease
      put(state, lease.who)
    end
    state.first, state.left = 0, redis.call('ZCOUNT', state.key, '(0', int(now)) - #ended
    state.used = state.used - state.left
  end
end

function concurrency.load(_, _, _, key)
  return { key = key, leases = {}, expected = {}, puts = 0, run_out = {} }
end

-- Reads the leases that some hold, and the first time what is known of all.
local function look_up(state, whos, now)
  local members = { 'used', 'first', 'last', 'loose', 'newest', 'standing' }
  local known = #members
  for i, who in ipairs(whos) do
    members[known + 3 * i - 2], members[known + 3 * i - 1], members[known + 3 * i] = 'h:' .. who, 'b:' .. who, 'c:' .. who
  end
  local scores = scores_of(state, members)
  if not state.used then
    read(state, scores, now)
  end
  for i, who in ipairs(whos) do
    if not state.leases[who] then
      local ends, born, cost = unpack(scores, known + 3 * i - 2, known + 3 * i)
      state.leases[who] = { who = who, ends = ends, born = born, cost = cost }
      if ends > 0 and ends <= now then -- it is among those that are left
        put(state, who)
        state.used, state.left = state.used + 1, state.left - 1
      end
    end
  end
end

-- Tells that the lease of `who` will be asked for: MOST_LEASES of these are read at once.
function concurrency.expect(state, who)
  local last = state.expected[#state.expected]
  if not last or #last == MOST_LEASES then
    last = {}
    table.insert(state.expected, last)
  end
  last[#last + 1] = who
end

-- The lease that `who` holds, which costs nothing if there is none.
local function lease_of(state, who, now)
  if not state.leases[who] and state.was_empty then
    state.leases[who] = { who = who, ends = 0, born = 0, cost = 0 }
  elseif not state.leases[who] then
    local whos = table.remove(state.expected) or {}
    whos[#whos + 1] = who
    look_up(state, whos, now)
  end
  return state.leases[who]
end

-- How many slots are free now.
function concurrency.free(state, limit, now)
  if not state.used then
    lease_of(state, '', now)
  end
  return math.max(0, limit.count - state.used)
end

-- When so many more can start is not known ahead.
function concurrency.due(state, limit, n, keep, now)
  return n + keep <= concurrency.free(state, limit, now) and now or math.huge
end

-- How much of what others hold must end before a cost fits, none if it fits now; and
-- what `who` holds.
local function lacking(state, limit, cost, now, who)
  local held = lease_of(state, who, now)
  return held.cost >= cost and 0 or math.max(0, state.used - held.cost + cost - limit.count), held
end

-- Whether a lease is there for it.
function concurrency.has(state, cost, now, who)
  return lease_of(state, who, now).cost >= cost
end

-- The instant at which that much of what others than `who` hold has run out. For
-- more than can be looked through it takes those that it skips to cost 1, which is never
-- too early.
local function run_out(state, limit, cost, now, who)
  local skipped = math.max(0, cost - MOST_LEASES)
  for _, lease in ipairs(leases_by('ZRANGEBYSCORE', state, '(' .. int(now), '+inf', skipped, cost - skipped + 1, cost > 1)) do
    cost = cost - (lease.who ~= who and lease.cost or 0)
    if cost <= skipped then
      return lease.ends
    end
  end
  return now + limit.period_us
end

function concurrency.earliest(state, limit, cost, from, now, who)
  local short, held = lacking(state, limit, cost, now, who)
  if short == 0 then
    return from
  end
  local question = short .. '/' .. (held.cost > 0 and who or '')
  state.run_out[question] = state.run_out[question] or run_out(state, limit, short, now, who)
  return math.max(from, state.run_out[question])
end

concurrency.spread = concurrency.earliest

-- What does not fit now gets no slot ahead: the leases that ought to have run out
-- by then may have been renewed.
function concurrency.horizon(state, limit, now, cost, who)
  return lacking(state, limit, cost, now, who) == 0 and math.huge or now
end

function concurrency.take(state, limit, cost, at, now, who)
  local born = math.max(now, lease_of(state, who, now).born + 1)
  put(state, who, at + limit.period_us, born, cost)
  return born, 0
end

-- Hands a slot that is free to one who stands by for it, as a lease that lasts only
-- until `ends`: its first renewal makes it one like others. `asked` is what has to be
-- free. Returns its birth; 0 for one that holds a lease already, as a redelivered task
-- may, for that must not be cut short; and nil where too little is free.
function concurrency.hand(state, limit, asked, cost, now, who, ends)
  if asked > concurrency.free(state, limit, now) then
    return nil
  elseif lease_of(state, who, now).cost > 0 then
    return 0
  end
  return (concurrency.take(state, limit, cost, ends - limit.period_us, now, who))
end

-- Notes that somebody stands by for a slot from now on, for that long at least. It is
-- noted for twice as long, so that few calls have to. Tells whether that changes anything.
function concurrency.stand(state, now, us)
  local is_news = state.standing < now + us
  state.standing = is_news and now + 2 * us or state.standing
  return is_news
end

-- Whether somebody may stand by; nobody who was not noted does.
function concurrency.is_stood_for(state, now)
  return (state.standing or 0) > now
end

-- Ends the lease that `who` holds, if that is the one that was born then; without a
-- birth, whichever it is. Tells whether there was one.
function concurrency.let_go(state, now, who, born)
  local held = lease_of(state, who, now)
  if held.cost == 0 or born and held.born ~= born then
    return false
  end
  put(state, who)
  return true
end

function concurrency.give_back(state, _, _, _, now, born, _, who)
  return concurrency.let_go(state, now, who, born)
end

-- A running task holds what it holds.
function concurrency.adjust()
  return false
end

-- Keeps a lease for another term. One that is gone may come `back` if there is room,
-- because its task still runs.
function concurrency.renew(state, limit, cost, now, born, who, back)
  local short, held = lacking(state, limit, cost, now, who)
  local is_held = held.cost > 0 and held.born == born
  if is_held or held.cost == 0 and back and short == 0 then
    put(state, who, now + limit.period_us, born, is_held and held.cost or cost)
    return true
  end
  return false
end

-- Who starts after the end of the lease starts without one.
function concurrency.use_by(_, limit, at)
  return at + limit.period_us
end

function concurrency.status(state, limit, now)
  local free = concurrency.free(state, limit, now)
  if state.loose == 1 then
    local leases = leases_by('ZREVRANGEBYSCORE', state, '+inf', '(0', 0, 1)
    state.last, state.loose = #leases > 0 and leases[#leases].ends or 0, 0
  end
  return free, math.max(0, state.last - now)
end

-- Cuts the leases that were born later than now; see above.
local function cut(state, limit, now)
  local most = now + limit.period_us
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', state.key, '-inf', '(-' .. int(now), 'LIMIT', 0, MOST_LEASES)) do
    local lease = lease_of(state, string.sub(member, 3), now)
    if lease.born > now and lease.ends > most and not lease.is_put then
      put(state, lease.who, most, lease.born, lease.cost)
    end
  end
end

function concurrency.save(state, limit, now, key)
  if state.newest > now then
    cut(state, limit, now)
  end
  if state.used <= 0 then
    redis.call('UNLINK', key)
    return
  end
  local args = {}
  local function add(score, member)
    args[#args + 1], args[#args + 2] = int(score), member
  end
  add(-state.used - state.left, 'used')
  add(-state.first, 'first')
  add(-state.last, 'last')
  add(-state.loose, 'loose')
  add(-state.newest, 'newest')
  add(-state.standing, 'standing')
  for who, lease in pairs(state.leases) do
    if lease.is_put then
      add(lease.ends, 'h:' .. who)
      add(-lease.born, 'b:' .. who)
      add(-lease.cost, 'c:' .. who)
    end
  end
  for i = 1, #args, 1000 do -- as many as Lua can unpack for certain
    redis.call('ZADD', key, unpack(args, i, math.min(i + 999, #args)))
  end
  if now % SWEEP_ONE_IN == 0 then
    redis.call('ZREMRANGEBYSCORE', key, 0, 0)
  end
  local second = math.ceil(math.max(state.last, state.standing) / KEPT_US)
  if second > state.was_kept then
    redis.call('PEXPIRE', key, int(ttl_ms(second * KEPT_US - now)))
  end
end
