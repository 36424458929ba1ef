for name, algorithm in pairs(algorithms) do
  if name == 'token_bucket' then
    function algorithm.due(state, limit, n, keep, now)
      return math.max(now, math.max(state.tat, now) + (n + keep) * limit.token_us - limit.full_us)
    end
  elseif name == 'fixed_window' then
    function algorithm.due(state, limit, n, keep, now)
      local s = limit.option == 'first' and (state.start and state.start + math.max(0, math.floor((now - state.start)/limit.period_us))*limit.period_us or now) or now - now % limit.period_us
      while true do
        local place = state.start and (s - state.start) / limit.period_us + 1 or 0
        local taken = state.taken[place] or 0
        if taken + n <= limit.count - keep then
          return math.max(now, s + math.floor((taken + n - 1) * limit.period_us / limit.count))
        end
        n = n - math.max(0, limit.count - keep - taken)
        s = s + limit.period_us
      end
    end
  end
end
for _, algorithm in pairs(algorithms) do
  algorithm.due = algorithm.due or function(state, limit, n, keep, now)
    return algorithm.earliest(state, limit, math.min(n + keep, limit.capacity), now, now, '')
  end
end
