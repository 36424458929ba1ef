-- reserve: takes the cost of each request from all limits of a policy, or from
-- none, for the first instant at which all of them pass.
--
-- Under the other names, requests heed the waiting line. Under the name of ask, those that
-- are denied join it, or stand by. Two more are for producers, and take nothing from any
-- limit: who joins is put into line without asking for its start, and who looks is told
-- whether it would be there if it asked. The parts of the line (see parts/line.lua and
-- line_join.lua) are made only if it is there, or if somebody does not pass; and
-- parts/fast.lua may have answered before.
--
-- KEYS  as parts/policy.lua says, each state key once; if the line is heeded, its key
--       comes behind the freeze key
--       Behind a line's key the keys of its rows and lanes are made of it, for which there
--       are is only known from what it holds; and the key of the policy's lines and the
--       channel for calls of the freeze key
-- ARGV  as parts/policy.lua says; if the line is heeded, what parts/line.lua and
--       parts/line_join.lua say, all in one text: see parts/told.lua;
--       then for each run of equal requests:
--         times       how many there are
--         wait_us     how far ahead a slot may lie; for who joins, the instant at which it
--                     came, 0 for now
--         who         the task, for limits that remember it
--         attempt     where in KEYS the answer to this attempt is kept; 0 for nowhere, as for
--                     who joins or looks
--         urgent      1 or 0, only where limits keep something for urgent requests
--         defer_us, place, stands (if the line is heeded) how far ahead they may be
--                     expected to start, negative for those that are not to stand in
--                     line; their place if they had a slot before, or where they are
--                     in line if they look, or 0; and 1 if they may be told to stand by,
--                     or else 0
--         place, cost for each limit: where in KEYS its state key is, and tokens
-- Reply now_us, then for each stretch of requests:
--         requests    how many there are
--         and for the first of them, and if there are more, for the last, too; what is
--         true of those in between lies evenly between these:
--         at_us       the slot, or the first instant at which it would pass; when it
--                     is expected to start, for who is in line
--         granted     1, or 0, also for who looks and may start; its place, for who stood in line until now; 2 for who is
--                     in line now, with its position and its place in the first two
--                     receipts; 3 for who would be, but for its defer_us; 4 for who is
--                     to stand by for a slot
--         held_by     the limit that set at_us (1..n), 0 for none, -1 for a freeze
--         use_by_us   a start must come before it; 0 for no such instant
--         receipt_1, receipt_2                  for each limit, for cancel
--         remaining, reset_after_us             for each limit
-- Worst case: 1,024 state keys (mostKeys in throttle/calls.go), so 1,024 requests before one
-- limit and 32 before 32, and as many keys of attempts. One read of all keys; one write for
-- each state and each attempt, and what an algorithm needs that keeps no string (see
-- README.md). With a line, also up to 15 commands for each task, 8 more for each
-- concurrency limit, and 12 for each row.
-- A blind retry is safe; without an attempt it takes the cost again. Who is in line keeps
-- its place, and has asked once more.
-- Needs Redis 6.2.

-- Who joined longer ago comes now.
local MOST_AGO_US = 60000000

local joins, looks = operation == 'join', operation == 'look'
asks = not joins and not looks
local reply, size = { now }, 1
local opens = math.max(now, frozen_until)
-- A request's states, its costs, and what it has to find for them.
local own, costs, asked = {}, {}, nil

-- The line, once it is made; and whether it is heeded, what is told of it, where in that its
-- members and their rows are, and how many requests were decided without it.
local line
local heeds = operation ~= 'reserve'
local told = heeds and texts_in(next_text())
local members_at, decided = heeds and 5 + 2 * told[4], 0

-- Makes the line.
local function make_line()
  line = read_from(told, make.line)
  for _ = 1, decided do
    line.next_task()
  end
end

-- Whether the next request's task may stand in line.
local function may_join()
  return heeds and told[members_at + 2 * decided + 2] ~= '0'
end

-- Whether who may wait keeps a margin from others although it would pass now; and whether
-- limits read what they know of tasks for many at once.
local keeps_margin, expects = false, false
for i = 1, #limits do
  local algorithm = limits[i].algorithm
  keeps_margin, expects = keeps_margin or algorithm.keeps_margin, expects or algorithm.expect
end

-- Whether somebody may stand by for what the request needs.
local function is_stood_for()
  for i, limit in ipairs(limits) do
    if limit.algorithm.is_stood_for and limit.algorithm.is_stood_for(own[i], now) then
      return true
    end
  end
  return false
end

-- What is ahead of now gets its own instant, if that is within reach; what is not, too,
-- if it is `since` 0.
local function slot_ahead(at, wait_us, who, since)
  if at - now > wait_us then
    return nil
  end
  local slot, reach = first_instant(own, asked, at, 'spread', who, since), now + wait_us
  for i = 1, #limits do
    local limit = limits[i]
    if limit.algorithm.horizon then
      reach = math.min(reach, limit.algorithm.horizon(own[i], limit, now, asked[i], who) - 1)
    end
  end
  return slot <= reach and slot or nil
end

-- Takes the costs of so many requests for that instant, and tells before when a start
-- must be.
local function take_all(requests, slot, receipts, who)
  local use_by = 0
  for i = 1, #limits do
    local limit, state = limits[i], own[i]
    local algorithm, cost = limit.algorithm, costs[i]
    local takes = algorithm.takes_each and requests or 1
    for _ = 1, takes do
      reply[receipts + 2 * i - 1], reply[receipts + 2 * i] = algorithm.take(state, limit, cost * requests / takes, slot, now, who)
    end
    state.changed = true
    if state.views then
      count_in_others(state, limit, cost * requests, slot)
    end
    local ends = algorithm.use_by and algorithm.use_by(state, limit, slot)
    if ends and (use_by == 0 or ends < use_by) then
      use_by = ends
    end
  end
  return use_by
end

-- The first instant at which a request may start, or nil if it is denied. `at` is when the
-- limits let it pass.
local function slot_of(task, at, wait_us, who)
  if not asks then
    return nil
  elseif task and line.is_behind(task) then
    return slot_ahead(at, line.idle_us, who, 0) -- that nobody else will be in time for
  end
  return (at > now or keeps_margin) and slot_ahead(at, task and line.patience(task, wait_us) or wait_us, who)
    or at == now and at or nil
end

-- Whether a task that only looks would be put into line. One that lacks a lease, but has
-- nobody ahead, is better off with a worker: when a lease ends nobody can tell.
local function may_start(task, at, held_by, wait_us)
  local lacks_lease = held_by > 0 and limits[held_by].algorithm.renew
  return looks and not task.came and not line.is_behind(task) and (lacks_lease or at - now <= line.patience(task, wait_us))
end

-- The answers of attempts that may ask again, and their slots, by their places in KEYS.
local granted_to, granted_at = {}, {}

local function decide(task, run, wait_us, who, attempt, urgent)
  asked = asked_for(costs, own, urgent, who)
  local at, held_by = first_instant(own, asked, opens, 'earliest', who)
  if not line and may_join() and (at > now or keeps_margin or is_stood_for()) then
    make_line()
    task = line.next_task(run)
  end
  if held_by == 0 and opens > now then
    held_by = -1
  end
  local slot = slot_of(task, at, wait_us, who)
  local behind = slot and task and line.behind_standing(task, own, asked, costs, who)
  if behind then
    slot, held_by = nil, behind
  end
  local receipts = size + 4
  reply[size + 1], reply[size + 2], reply[size + 3] = slot or at, slot and 1 or 0, held_by
  if slot then
    reply[receipts] = take_all(1, slot, receipts, who)
    if attempt > 0 then
      granted_to[attempt], granted_at[attempt] = answer_text(reply, size + 1, #limits), slot
    end
    if task then
      line.step_down(task, own, costs)
      line.start(task, costs)
      reply[size + 2] = task.place or 1
    elseif run and run.place > 0 then
      reply[size + 2] = run.place
    end
  else
    for i = receipts, receipts + 2 * #limits do
      reply[i] = 0
    end
    if joins and wait_us > now - MOST_AGO_US and wait_us < now then
      task.came = task.row.urgent and wait_us - line.urgent_us or wait_us
    end
    if task and not may_start(task, at, held_by, wait_us) then
      if asks then
        line.let_go(task, own, who)
      end
      if asks and line.may_stand(task, held_by, wait_us, who) then
        reply[size + 2], reply[size + 1], reply[receipts + 1], reply[receipts + 2] =
          line.stand(task, own, costs, at, held_by)
      else
        line.step_down(task, own, costs)
        reply[size + 2], reply[size + 1], reply[receipts + 1], reply[receipts + 2] =
          line.join(task, costs, at, held_by)
      end
    end
  end
  size = report(reply, receipts + 2 * #limits, own)
  return slot
end

-- How many of these equal requests have answers that lie evenly between the first's and
-- the last's, because all of them pass now.
local function even_ones(requests)
  if line or kept or opens > now then
    return 1
  end
  for i = 1, #limits do
    local limit = limits[i]
    if requests < 2 or not limit.algorithm.passing then
      return 1
    end
    requests = math.min(requests, limit.algorithm.passing(own[i], limit, costs[i], now))
  end
  return math.max(1, requests)
end

-- Decides on equal requests, the first of a run, and returns how many they are.
local function decide_stretch(requests, run, wait_us, who, attempt, urgent)
  local stretch, task = even_ones(requests), line and line.next_task(run)
  size = size + 1
  local head = size
  local before = attempt > 0 and (granted_to[attempt] or raw[attempt])
  if before and tell_again(before, reply, size + 1, #limits) then
    size = report(reply, size + 4 + 2 * #limits, own)
  elseif not decide(task, run, wait_us, who, attempt, urgent) and not heeds then
    stretch = requests -- for nothing has changed for the others
  end
  reply[head] = stretch
  if stretch > 1 then
    for _ = 2, line and stretch or 0 do
      line.next_task(run)
    end
    local receipts = size + 4
    for i = 1, 4 + 2 * #limits do
      reply[size + i] = reply[head + i]
    end
    if reply[head + 2] > 0 then
      take_all(stretch - 1, now, receipts, who)
    end
    size = report(reply, receipts + 2 * #limits, own)
  end
  decided = decided + stretch
  return stretch
end

if joins or heeds and raw[2] then
  make_line()
end
local first = argument
while expects and argument < #ARGV do
  argument = argument + 2
  local who = next_text()
  argument = argument + 1 + (kept and 1 or 0) + (heeds and 3 or 0)
  expect(who, 1)
end
argument = first
while argument < #ARGV do
  local times, wait_us, who, attempt = next_number(), next_number(), next_text(), next_number()
  local urgent = next_urgent()
  local run = heeds and { defer_us = next_number(), place = next_number(), may_stand = next_number() == 1 } or nil
  for i = 1, #limits do
    own[i], costs[i] = state_at(next_number(), i), next_number()
  end
  repeat
    times = times - decide_stretch(times, run, wait_us, who, attempt, urgent)
  until times == 0
end

local refused = (asks and save or refuse)()
if refused then
  return refused
end
if line then
  line.finish()
  line.finish_standing()
end
for attempt, answer in pairs(granted_to) do
  keep_answer(attempt, answer, granted_at[attempt])
end
return reply
