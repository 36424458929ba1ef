-- For one window, or none.
function shortcuts.fixed_window(raw, cost, times, most, period_us, numbers, option)
  local start, taken = option == 'first' and now or now - now % period_us, 0
  if raw then
    local from, to = string.find(raw, numbers, 1, true)
    local began, tokens = from and tonumber(string.sub(raw, 1, from - 1)), from and tonumber(string.sub(raw, to + 1))
    if not began or not tokens then
      return nil
    elseif now < began + period_us then
      start, taken = began, tokens
    end
  end
  local first, last, ends = taken + cost, taken + times * cost, start + period_us
  if last > most then
    return nil
  end
  return int(start) .. numbers .. int(last), ends - now, ends, 0,
    start, most - first, ends - now,
    start, most - last, ends - now
end
