-- For a TAT alone, where a token is worth whole microseconds.
function shortcuts.token_bucket(raw, cost, times, capacity, token_us, full_us, full_text, mark)
  local tat = now
  if raw then
    local slash = string.find(raw, '/', 1, true)
    local kept = slash and string.sub(raw, slash + 1) == full_text and tonumber(string.sub(raw, 1, slash - 1))
    if not kept then
      return nil
    elseif kept > now then
      tat = kept
    end
  end
  local cost_us = cost * token_us
  local first_us, last_us = tat + cost_us - now, tat + times * cost_us - now
  if last_us > full_us then
    return nil
  end
  return int(now + last_us) .. '/' .. full_text, last_us, 0, mark,
    now + first_us, capacity - math.ceil(first_us / token_us), first_us,
    now + last_us, capacity - math.ceil(last_us / token_us), last_us
end
