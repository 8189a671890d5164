
-- The usual call: each request charges buckets whose states, if they have any, are of their own quotas. It is what the rest of the
-- script does, without making what this case does not need. If anything is unusual nothing has been written yet, and the rest decides.
do
  local answers, states, lives, missing_of = {}, {}, {}, {}
  local is_usual, first = true, 0
  for index = 1, requests do
    local body = ARGV[index + 1]
    local operation, count = byte(body, 1, 2)
    if operation ~= CHARGE or count == 0 or #body ~= 2 + count * 50 or first + count > keys then
      is_usual = false
      break
    end
    local answer, is_admitted = '\0', true
    -- Several are looked at before any is charged.
    for round = count > 1 and 1 or 2, 2 do
      for place = 1, count do
        local key = KEYS[first + place]
        local kind, shadow, origin, tag, seconds, cost, gain, price, units, at_once =
          unpack_at('<BBBc3I4ddddd', body, place * 50 - 47)
        local credits, missing = 0, 0
        if round == 2 and count > 1 then
          credits, missing = units * price, missing_of[place]
        elseif kind == RESERVOIR and origin == 0
          and cost >= 0 and cost <= EXACT + 1 and cost % 1 == 0
          and gain >= 1 and gain % 1 == 0 and price >= 1 and price % 1 == 0 and units >= 1 and units % 1 == 0
          and at_once >= 0 and at_once <= units and at_once % 1 == 0 and units * price + gain <= EXACT
        then
          credits = units * price
          local state = states[key]
          if state == nil then state = held[first + place] end
          if state then
            local tick, fraction = tonumber(sub(state, 4, 19)), 0
            if #state ~= 19 then fraction = byte(state, 20) == 46 and tonumber(sub(state, 21)) end
            if tick and fraction and sub(state, 1, 3) == tag and tick >= 0 and tick <= EXACT and tick % 1 == 0
              and fraction >= 0 and fraction <= EXACT and fraction % 1 == 0
            then
              if tick >= now then
                missing = (tick - now) * gain + fraction
                if missing > credits then missing = credits end
              end
            else
              is_usual = false
              break
            end
          end
        else
          is_usual = false
          break
        end
        if round == 1 then
          missing_of[place] = missing
          if shadow == 0 and (cost > units or cost * price > credits - missing) then is_admitted = false end
        else
          local left, verdict, time, rest = missing, ALLOW, 0, 0
          if cost > units then
            verdict = NEVER
          else
            local short = cost * price - (credits - missing)
            if short > 0 then
              rest = short % gain
              verdict, time = DENY, (short - rest) / gain
            elseif is_admitted then
              left = missing + cost * price
              local queued = left - at_once * price
              if queued > 0 and cost > 0 then
                rest = queued % gain
                verdict, time = WAIT, (queued - rest) / gain
              end
            end
            if rest > 0 then time = time + 1 end
          end
          rest = left % gain
          local ticks = (left - rest) / gain
          local reset = rest > 0 and ticks + 1 or ticks
          local is_allowed = verdict <= WAIT
          -- A clamp that a step of the clock made necessary is kept of one that denies.
          if (is_allowed == is_admitted or count == 1) and ((is_allowed and cost > 0) or missing == credits) then
            if rest == 0 then
              states[key] = format('%s%016d', tag, now + ticks)
            else
              states[key] = format('%s%016d.%d', tag, now + ticks, rest)
            end
            local life = (reset - reset % 1000) / 1000 + 2
            if life < seconds * 1000 then life = seconds * 1000 end
            lives[key] = life
          end
          local available = credits - left
          local beyond = available % price
          local next_unit = 0
          if left > 0 then
            next_unit = price - beyond
            rest = next_unit % gain
            next_unit = (next_unit - rest) / gain
            if rest > 0 then next_unit = next_unit + 1 end
          end
          answer = answer .. pack('<Bdddd', verdict, time, (available - beyond) / price, next_unit, reset)
        end
      end
      if not is_usual then break end
    end
    if not is_usual then break end
    answers[index] = answer
    first = first + count
  end
  if is_usual and first == keys then
    for index = 1, keys do
      local key = KEYS[index]
      local life = lives[key]
      if life then
        if injected then life = life + INJECTED_MILLISECONDS end
        call('SET', key, states[key], 'PX', life)
        lives[key] = nil
      end
    end
    return answers
  end
end
