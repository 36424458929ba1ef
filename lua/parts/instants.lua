-- instants: exact ones, for limits whose tokens come back one by one. A token is worth
-- period_us/count microseconds. Where that is no integer, an instant has a `part` besides
-- its whole microseconds, in units of 1/count microsecond, so that no error adds up.
local instants = {}

function instants.prepare(limit)
  limit.token_us, limit.token_parts = math.floor(limit.period_us / limit.count), limit.period_us % limit.count
end

function instants.at(us, part)
  return { us = us, part = part or 0 }
end

-- The instant at which so many tokens have come back since another one; or (negative) the
-- one since which they have.
function instants.after(limit, from, tokens)
  local part = from.part + tokens * limit.token_parts
  return { us = from.us + tokens * limit.token_us + math.floor(part / limit.count), part = part % limit.count }
end

-- How many tokens come back between two.
function instants.tokens(limit, from, till)
  local us = till.us - from.us
  -- Whole periods first: us * count would leave the exact integers.
  return math.floor(us / limit.period_us) * limit.count
    + math.floor((us % limit.period_us * limit.count + till.part - from.part) / limit.period_us)
end

-- The first whole microsecond that is not before an instant, or not before it is so many
-- tokens later.
function instants.told(at)
  return at.us + math.min(at.part, 1)
end

function instants.told_after(limit, from, tokens)
  return from.us + tokens * limit.token_us + math.ceil((from.part + tokens * limit.token_parts) / limit.count)
end

function instants.is_later(a, b)
  return a.us > b.us or a.us == b.us and a.part > b.part
end

function instants.later(a, b)
  return instants.is_later(a, b) and a or b
end
