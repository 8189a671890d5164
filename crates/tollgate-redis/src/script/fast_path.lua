
-- The fast path: each request charges buckets and windows whose states have the request's quotas and a clock that did
-- not step back. It decides as the rest of the script does, but creates no functions, and replies with the counters it
-- found, from which the client computes the outcome. In any other case it has written nothing yet, and the rest of the
-- script decides.
do
  local answers, lives, firsts, others, uses, known, spans = {}, nil, nil, nil, nil, nil, nil
  local before, charges, count, first = nil, nil, 0, 0
  -- A single bucket, the most common request: its fields are kept in locals.
  local alone, tag, keep, charged, gain, credits, shape, unit_credits_alone
  -- Whether the request lends. Then the seconds of a charge hold the maximum to lend.
  local lends, due, part, report = false, nil, nil, nil
  for index = 1, requests do
    local body = ARGV[index + 1]
    if #body == 1 then body = ARGV[byte(body) + 1] or '' end
    if body ~= before then
      lends = byte(body, 1) == LEND
      if lends and not lending then break end
    end
    if body ~= before and #body == (lends and 52 + WANT_BYTES or 52) and (lends or byte(body, 1) == CHARGE) and byte(body, 2) == 1
      and byte(body, 3) == RESERVOIR
    then
      local _, _, origin, cost, unit_credits, units, immediate_units
      _, _, origin, tag, keep, cost, gain, unit_credits, units, immediate_units = unpack_at('<BBBc3I4ddddd', body, 3)
      if not (origin == 0 and cost >= 0 and cost <= EXACT + 1 and cost % 1 == 0
        and gain >= 1 and gain % 1 == 0 and unit_credits >= 1 and unit_credits % 1 == 0 and units >= 1 and units % 1 == 0
        and immediate_units >= 0 and immediate_units <= units and immediate_units % 1 == 0 and units * unit_credits + gain <= EXACT)
      then
        break
      end
      charged, credits, shape, before, alone = cost * unit_credits, units * unit_credits, tag .. '%016d', body, true
      unit_credits_alone = unit_credits
      if lends then
        due, part, report = want_at(body, 53)
        if not due then break end
      end
    elseif body ~= before then
      alone = false
      charges = known and known[body]
      if not charges then
        local operation
        operation, count = byte(body, 1, 2)
        if not (operation == CHARGE or lends) or count == 0 then break end
        charges = {}
        local at = 3
        for place = 1, count do
          if #body < at + 49 then break end
          local kind, shadow, origin, tag, keep, cost, a, b, c, d = unpack_at('<BBBc3I4ddddd', body, at)
          at = at + 50
          if not (origin == 0 and cost >= 0 and cost <= EXACT + 1 and cost % 1 == 0
            and a >= 1 and a <= EXACT and a % 1 == 0 and b >= 1 and b <= EXACT and b % 1 == 0)
          then
            break
          elseif kind == RESERVOIR then
            if not (c >= 1 and c % 1 == 0 and d >= 0 and d <= c and d % 1 == 0 and c * b + a <= EXACT) then break end
            charges[place] = { kind, tag, shadow == 0, keep, cost * b, a, c * b, a * 1000000, tag .. '%016d', b }
          elseif (kind == EPOCH or kind == FIRST_HIT) and b <= PERIOD_MAX then
            charges[place] = { kind, tag, shadow == 0, keep, cost, a, b }
          elseif kind == SLIDING and b <= PERIOD_MAX and a * b <= EXACT
            and c >= 1 and c <= PRECISION_MAX and c % 1 == 0 and (d == 0 or d == 1)
          then
            charges[place] = { kind, tag, shadow == 0, keep, cost, a, b, c, d }
          else
            break
          end
        end
        if #charges ~= count or #body ~= at - 1 + (lends and count * WANT_BYTES or 0) then break end
        for place = 1, lends and count or 0 do
          local charge = charges[place]
          charge.due, charge.part, charge.report = want_at(body, at + (place - 1) * WANT_BYTES)
          if not charge.due then charges = nil break end
        end
        if not charges then break end
        if requests > 1 then
          known = known or {}
          known[body] = charges
        end
      end
      before, count = body, #charges
    end
    if alone then
      first = first + 1
      local at, missing, is_clamped = first, 0, false
      if lends then first = first + 1 end
      if first > keys then break end
      if places then at = places[at] end
      local state = held[at]
      if state then
        local tick, fraction = tonumber(sub(state, 4, 19)), 0
        if #state ~= 19 then fraction = byte(state, 20) == 46 and tonumber(sub(state, 21)) end
        if not (tick and fraction and sub(state, 1, 3) == tag
          and tick >= 0 and tick % 1 == 0 and fraction >= 0 and fraction % 1 == 0)
        then
          break
        end
        if tick >= now then missing = (tick - now) * gain + fraction end
        if missing > credits then missing, is_clamped = credits, true end
      end
      local left, lent = missing + charged, 0
      if left > credits then
        left = missing
      elseif lends then
        lent = credits - left
        lent = due_of((lent - lent % unit_credits_alone) / unit_credits_alone, keep, due, part)
        left = left + lent * unit_credits_alone
      end
      -- A state clamped after a step of the clock is written, so that the step costs one interval.
      if left ~= missing or is_clamped then
        local rest = left % gain
        local ticks = (left - rest) / gain
        if rest == 0 then
          held[at] = format(shape, now + ticks)
        else
          held[at] = format('%s%016d.%d', tag, now + ticks, rest)
        end
        local life = (ticks - ticks % 1000000) / 1000000 + SPARE_SECONDS
        if life < keep and not lends then life = keep end
        if requests == 1 and keys == 1 then
          if injected then life = life + INJECTED_SECONDS end
          call('SET', KEYS[1], held[1], 'EX', format('%d', life))
        else
          lives = lives or {}
          lives[at] = life
        end
      end
      -- The missing credits determine the outcome.
      if lends then
        local demand_at = places and places[first] or first
        local reports, demand = weigh(held[demand_at], report, (credits - left - (credits - left) % unit_credits_alone) * 2 < credits)
        if reports then
          lives = lives or {}
          held[demand_at], lives[demand_at] = reports, DEMAND_SECONDS
        end
        answers[index] = pack('<Bdddd', 7, now, missing, lent, demand)
      else
        answers[index] = pack('<Bdd', 5, now, missing)
      end
    else
      if first + (lends and count + count or count) > keys then break end
      firsts, others, uses = firsts or {}, others or {}, uses or {}
      -- With several counters all are read before any is charged. These hold what was found and the new states.
      local fits, clamps = true, nil
      for place = 1, count do
        local charge, at = charges[place], first + place
        if places then at = places[at] end
        local kind, cost, state, is_allowed = charge[1], charge[5], held[at], true
        if state and sub(state, 1, 3) ~= charge[2] then
          fits = nil
        elseif kind == RESERVOIR then
          local missing = 0
          if state then
            local tick, fraction = tonumber(sub(state, 4, 19)), 0
            if #state ~= 19 then fraction = byte(state, 20) == 46 and tonumber(sub(state, 21)) end
            if not (tick and fraction and tick >= 0 and tick % 1 == 0 and fraction >= 0 and fraction % 1 == 0) then
              fits = nil
              break
            end
            if tick >= now then missing = (tick - now) * charge[6] + fraction end
            if missing > charge[7] then
              missing, clamps = charge[7], clamps or {}
              clamps[place] = true
            end
          end
          firsts[place] = missing
          is_allowed = missing + cost <= charge[7]
        elseif kind == SLIDING then
          local length, precision, used = charge[7], charge[8], 0
          local offset = now % length
          local this, counts = (now - offset) / length, {}
          if state then
            local parts = { pcall(cmsgpack.unpack, sub(state, 5)) }
            local newest = parts[2]
            if byte(state, 4) ~= 87 or not parts[1] or #parts < 3 or #parts > PRECISION_MAX + 3
              or type(newest) ~= 'number' or not (newest >= 0 and newest <= this and newest % 1 == 0)
            then
              fits = nil
              break
            end
            local behind = this - newest
            local oldest, is_idle = precision - behind, true
            for position = 1, behind <= precision and behind or 0 do counts[position] = 0 end
            for position = 1, #parts - 2 do
              local units = parts[position + 2]
              if type(units) ~= 'number' or not (units >= 0 and units <= EXACT and units % 1 == 0) then
                fits = nil
                break
              end
              if units > 0 and position <= oldest + 1 then is_idle = false end
              if position <= oldest then
                used = used + units
              elseif position == oldest + 1 and units > 0 then
                -- The part of the oldest sub-window that the window still covers, rounded up.
                if charge[9] == 0 and offset > 0 then
                  units = units * (length - offset)
                  if units > EXACT then fits = nil end
                  local rest = units % length
                  units = (units - rest) / length
                  if rest > 0 then units = units + 1 end
                end
                used = used + units
              end
              if behind + position <= precision + 1 then
                counts[behind + position] = parts[position + 2]
              end
            end
            if is_idle then fits = nil end
            if fits == nil then break end
          end
          counts[1] = (counts[1] or 0) + cost
          is_allowed = cost == 0 or used + cost <= charge[6]
          uses[place] = used
          firsts[place], others[place] = is_allowed and counts, this
        else
          local ends_at, units, period = 0, 0, charge[7]
          if state then
            if #state == 19 then
              ends_at, units = tonumber(sub(state, 4, 13)), tonumber(sub(state, 14, 19))
              ends_at = ends_at and ends_at * 1000000
            elseif byte(state, 20) == 46 then
              ends_at, units = tonumber(sub(state, 4, 19)), tonumber(sub(state, 21))
            else
              ends_at = nil
            end
            if not (ends_at and units and ends_at >= 0 and ends_at % 1 == 0 and units >= 0 and units % 1 == 0)
              or ends_at - now > period
            then
              fits = nil
              break
            end
          end
          if ends_at <= now or units == 0 then
            ends_at, units = kind == EPOCH and now - now % period + period or now + period, 0
          end
          firsts[place], others[place] = ends_at, units
          is_allowed = cost == 0 or units + cost <= charge[6]
        end
        if fits == nil then break end
        if charge[3] and not is_allowed then fits = false end
      end
      if fits == nil then break end
      local answer = pack('<Bd', lends and 7 or 5, now)
      for place = 1, count do
        local charge, at = charges[place], first + place
        if places then at = places[at] end
        local kind, cost, state, life, lent, is_tight = charge[1], charge[5], held[at], nil, 0, false
        if kind == RESERVOIR then
          local missing = firsts[place]
          local left = missing + cost
          local is_allowed = left <= charge[7]
          if lends and fits and is_allowed then
            lent = charge[7] - left
            lent = due_of((lent - lent % charge[10]) / charge[10], charge[4], charge.due, charge.part)
            left = left + lent * charge[10]
          end
          local changes = fits and is_allowed and cost + lent > 0
          if not changes then
            -- A state clamped after a step of the clock is written, so that the step costs one interval.
            left, changes = missing, clamps and clamps[place] and (is_allowed == fits or count == 1)
          end
          if changes then
            local gain = charge[6]
            local rest = left % gain
            if rest == 0 then
              held[at] = format(charge[9], now + left / gain)
            else
              held[at] = format('%s%016d.%d', charge[2], now + (left - rest) / gain, rest)
            end
            life = left / charge[8]
          end
          is_tight = (charge[7] - left - (charge[7] - left) % charge[10]) * 2 < charge[7]
          answer = answer .. pack('<d', missing)
        elseif kind == SLIDING then
          local found = state and sub(state, 5) or ''
          answer = answer .. pack('<H', #found) .. found
          local counts, this = firsts[place], others[place]
          if lends and fits and counts then
            lent = charge[6] - uses[place] - cost
            lent = lent > 0 and due_of(lent, charge[4], charge.due, charge.part) or 0
            counts[1] = counts[1] + lent
          end
          is_tight = (charge[6] - uses[place] - (fits and counts and cost + lent or 0)) * 2 < charge[6]
          if cost + lent > 0 and fits and counts then
            local length = #counts
            while length > 1 and counts[length] == 0 do length = length - 1 end
            held[at] = charge[2] .. 'W' .. cmsgpack.pack(this, unpack(counts, 1, length))
            life = ((this + charge[8] + 1) * charge[7] - now) / 1000000
          end
        else
          local ends_at, units = firsts[place], others[place]
          answer = answer .. pack('<dd', ends_at, units)
          local is_allowed = cost == 0 or units + cost <= charge[6]
          if lends and fits and is_allowed then
            lent = charge[6] - units - cost
            lent = lent > 0 and due_of(lent, charge[4], charge.due, charge.part) or 0
          end
          if cost + lent > 0 and fits and is_allowed then
            units = units + cost + lent
            if units < 1000000 and ends_at % 1000000 == 0 then
              held[at] = charge[2] .. format('%010d%06d', ends_at / 1000000, units)
            else
              held[at] = charge[2] .. format('%016d.%d', ends_at, units)
            end
            life = (ends_at - now) / 1000000
          end
          is_tight = (charge[6] - units) * 2 < charge[6]
        end
        if lends then
          local demand_at = first + count + place
          if places then demand_at = places[demand_at] end
          local reports, demand = weigh(held[demand_at], charge.report, is_tight)
          if reports then
            lives = lives or {}
            held[demand_at], lives[demand_at] = reports, DEMAND_SECONDS
          end
          answer = answer .. pack('<dd', lent, demand)
        end
        if life then
          life = life - life % 1 + SPARE_SECONDS
          lives = lives or {}
          lives[at] = life < charge[4] and not lends and charge[4] or life
        end
      end
      answers[index] = answer
      first = first + (lends and count + count or count)
    end
  end
  if first == keys and #answers == requests then
    for at = 1, lives and keys or 0 do
      local life = lives[at]
      if life then
        if injected then life = life + INJECTED_SECONDS end
        local span = spans and spans[life]
        if not span then
          span, spans = format('%d', life), spans or {}
          spans[life] = span
        end
        call('SET', KEYS[at], held[at], 'EX', span)
      end
    end
    return answers
  end
  -- The slow path starts over, so pending writes are dropped.
  if #answers > 0 then held = call('MGET', unpack(KEYS)) end
end
