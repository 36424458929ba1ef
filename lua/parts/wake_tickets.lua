-- wake_tickets: the tasks that were woken before. Who is believed to come gets its slot
-- reckoned first; who has not asked in time is woken again. One that was woken twice may
-- be anywhere, and must not keep others from being woken.

-- How often a wake is repeated, each time after twice as long, before it is given up.
local MOST_REPEATS = 8
-- Bounds of one call's work: tasks woken, and tasks that were woken and have not asked.
local MOST_WOKEN, MOST_EXPECTED = 128, 256

local tickets = { written = {}, forgotten = {}, expected = 0 }
-- How many stand by, or are on their way to: by state key, and all.
local standing, all_standing = {}, 0

function tickets.write(member, ticket)
  local written = tickets.written
  written[#written + 1] = member
  written[#written + 1] = ticket_of(ticket.place, ticket.till, ticket.times, ticket.share, ticket.turn, ticket.row)
end

local function note_standing(key)
  standing[key], all_standing = (standing[key] or 0) + 1, all_standing + 1
end

do
  -- One that stood by gives no sign of life.
  local function step_down(ticket)
    local row = row_named(ticket.row)
    local costs, who = parse_member(ticket.member)
    local asked = asked_for(costs, row.own, line.is_urgent(ticket.member), who)
    for i, limit in ipairs(limits) do
      if limit.algorithm.hand then
        redis.call('ZREM', line_key('standing', key_of(i, row)), standing_member(asked[i], costs[i], who))
      end
    end
  end

  local function wake_again(ticket)
    if ticket.times == 0 then
      step_down(ticket)
    end
    ticket.times = math.max(1, ticket.times) + 1
    if ticket.times > MOST_REPEATS then
      tickets.forgotten[#tickets.forgotten + 1] = ticket.member
      return
    end
    ticket.till = now + waking.believe_us * 2 ^ (ticket.times - 1)
    tickets.write(ticket.member, ticket)
    waking.woken[#waking.woken + 1] = ticket.member
  end

  -- Serves one that is believed to come. Who stands by beside a free slot is called.
  local function serve_first(ticket)
    local row = row_named(ticket.row)
    local costs, who = parse_member(ticket.member)
    local asked = asked_for(costs, row.own, line.is_urgent(ticket.member), who)
    local at, _, lacks = paced_instant(all_places, row.own, asked, waking.opens, who)
    if at < math.huge then
      take_in_copies(all_places, row, costs, at, who)
      if ticket.times == 0 and at <= now and #waking.woken < MOST_WOKEN then
        waking.woken[#waking.woken + 1] = ticket.member
      end
    else
      note_standing(key_of(lacks, row))
    end
  end

  function tickets.reckon()
    local coming = {}
    local all = redis.call('HGETALL', line_key('woken'))
    for i = 1, #all, 2 do
      local ticket = parse_ticket(all[i + 1])
      ticket.member = all[i]
      if ticket.till <= now and #waking.woken < MOST_WOKEN then
        wake_again(ticket)
      end
      waking.ask_again(ticket.till)
      if ticket.times < 2 then
        coming[#coming + 1] = ticket
      end
    end
    tickets.expected = #all / 2
    table.sort(coming, function(a, b)
      return a.turn < b.turn
    end)
    for _, ticket in ipairs(coming) do
      serve_first(ticket)
    end
  end
end
