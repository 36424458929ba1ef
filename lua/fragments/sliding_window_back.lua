-- How what fragments/sliding_window.lua took is given back, and adjusted.

-- What was counted before a change of numbers was counted anew by its share, and
-- can not be told apart any more: it does not come back.
function sliding_window.give_back(state, limit, cost, _, _, start, ends)
  local bucket = bucket_of(limit, ends - 1)
  if cost == 0 or start <= state.since or counted_in(state, bucket) < cost then
    return false
  end
  add(state, limit, bucket, -cost)
  state.full = nil
  return true
end

-- What a start cost counts in its bucket, for as long as that one counts.
function sliding_window.adjust(state, limit, more, _, now, start, ends)
  local bucket = bucket_of(limit, ends - 1)
  if start <= state.since then
    bucket = bucket_of(limit, state.since)
    more = math.max(0, more)
  end
  if more < 0 then
    more = -math.min(-more, counted_in(state, bucket))
    state.full = nil
  end
  if more == 0 or bucket < bucket_of(limit, now) - limit.span then
    return false
  end
  add(state, limit, bucket, more)
  return true
end
