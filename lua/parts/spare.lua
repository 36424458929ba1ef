-- spare: what slots ahead leave over in a bucket that keeps something for urgent
-- requests. A bucket counts what is taken for slots ahead at once, so by that count
-- alone whoever comes later starts later, too. But a request may start before such
-- slots, if each of them still finds its tokens: those that were left over after it.
--
-- So this keeps `low`: the least number of tokens that was left over after any slot
-- ahead, and after the last one that has been. A start in between lowers it. For it to
-- rise again, slots are noted in two parts: those from `from` on in `later`, which
-- takes the place of low once the first of them has been. Both are never too high.
--
-- Kept behind a bucket's state, as "!<low>,<last>,<from>,<later>"; times in us, 0 for
-- none.
local spare = {}

-- Reads it from a state; where it is unknown, nothing is left until all slots that may
-- be ahead have been.
function spare.load(text, now, last)
  local low, till, from, later = string.match(text, '!(%d+),(%d+),(%d+),(%d+)')
  if not low then
    return { low = 0, last = last }
  end
  local s = { low = tonumber(low), last = tonumber(till), from = tonumber(from), later = tonumber(later) }
  if s.from == 0 then
    s.from, s.later = nil, nil
  elseif s.from <= now then
    s.low, s.from, s.later = s.later, nil, nil
  end
  return s
end

function spare.store(s)
  return s and '!' .. table.concat({ int(math.max(0, s.low)), int(s.last), int(s.from or 0),
    int(math.max(0, s.later or 0)) }, ',') or ''
end

-- Whether a start at `from`, before slots ahead, leaves them their tokens.
function spare.suffices(s, cost, from)
  return s and from < s.last and math.min(s.low, s.later or s.low) >= cost
end

-- Notes a cost that was taken at an instant: the bucket had `before` left over now, and
-- has `after` after it. Returns what is known then.
function spare.note(s, before, after, cost, at, now)
  if not s or s.last <= now then
    return { low = math.min(before, after), last = at }
  end
  if at < s.last then
    s.low, s.later = s.low - cost, s.later and s.later - cost
    return s
  end
  s.last, s.from, s.later = at, s.from or at, math.min(after, s.later or after)
  return s
end
