-- join: puts tasks into line that do not ask for their start; or look: tells whether they
-- would be there if they did. It is for producers: who would be put into line by the
-- first worker that took it can be there before. Takes nothing from any limit.
--
-- KEYS  as reserve has them, with a line
-- ARGV  the same; attempt must be 0, and for who joins, wait_us is the instant at which
--       it came, or 0 for now
-- Reply as reserve's, receipts and all. granted is 2 for who is in line now, or would
--       be; 0 for who was only to be told, and may start
-- Worst case: as reserve's with a line, and no state is written.
-- A blind retry is safe: who is in line keeps its place, and has asked once more.
-- Needs Redis 6.2.

-- Who came longer ago comes now.
local MOST_AGO_US = 60000000

local joins = operation == 'join'
local line = read_from(texts_in(next_text()), make.line)
line.only_looks = not joins
local reply, size = { now }, 1
local opens = math.max(now, frozen_until)
local own, costs = {}, {}

-- Whether a task that asked would be denied. One that lacks a lease, but has nobody
-- ahead, is better off with a worker: when a lease ends nobody can tell.
local function has_to_wait(task, at, held_by, wait_us)
  local lacks_lease = held_by > 0 and limits[held_by].algorithm.renew
  return line.is_behind(task) or not lacks_lease and at - now > line.patience(task, wait_us)
end

local function place(task, wait_us, who, urgent)
  local at, held_by = first_instant(own, asked_for(costs, own, urgent, who), opens, 'earliest', who)
  if held_by == 0 and opens > now then
    held_by = -1
  end
  size = size + 1
  reply[size] = 1 -- a stretch of its own
  local receipts = size + 4
  reply[size + 1], reply[size + 2], reply[size + 3] = at, 0, held_by
  for i = receipts, receipts + 2 * #limits do
    reply[i] = 0
  end
  if joins then
    if wait_us > now - MOST_AGO_US and wait_us < now then
      task.came = task.row.urgent and wait_us - line.urgent_us or wait_us
    end
    reply[size + 2], reply[size + 1], reply[receipts + 1], reply[receipts + 2] =
      line.join(task, costs, at, held_by)
  elseif has_to_wait(task, at, held_by, wait_us) then
    reply[size + 2], reply[size + 1], reply[receipts + 1], reply[receipts + 2] =
      line.look(task, costs, at)
  end
  size = report(reply, receipts + 2 * #limits, own)
end

while argument < #ARGV do
  local times, wait_us, who, _ = next_number(), next_number(), next_text(), next_number()
  local urgent = next_urgent()
  local run = { defer_us = next_number(), place = next_number(), may_stand = next_number() == 1 }
  for i = 1, #limits do
    own[i], costs[i] = state_at(next_number(), i), next_number()
  end
  for _ = 1, times do
    place(line.next_task(run), wait_us, who, urgent)
  end
end

local refused = refuse()
if refused then
  return refused
end
line.finish()
return reply
