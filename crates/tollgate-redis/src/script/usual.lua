
-- The usual call: each request charges buckets whose states, if they have any, are of their own quotas. It is what the rest of the
-- script does, without making what this case does not need, and it leaves to the asker whatever follows from what a bucket lacked. If
-- anything is unusual nothing has been written yet, and the rest decides.
do
  -- The charges of a request, each with its numbers checked; nothing if any is not of a bucket, or a number is out of range.
  local function charges_of(body)
    local operation, count = byte(body, 1, 2)
    if operation ~= CHARGE or count == 0 or #body ~= 2 + count * 50 then return nil end
    local charges = { [0] = '<B' .. string.rep('d', count) }
    for place = 1, count do
      local kind, shadow, origin, tag, seconds, cost, gain, price, units, at_once =
        unpack_at('<BBBc3I4ddddd', body, place * 50 - 47)
      if kind == RESERVOIR and origin == 0
        and cost >= 0 and cost <= EXACT + 1 and cost % 1 == 0
        and gain >= 1 and gain % 1 == 0 and price >= 1 and price % 1 == 0 and units >= 1 and units % 1 == 0
        and at_once >= 0 and at_once <= units and at_once % 1 == 0 and units * price + gain <= EXACT
      then
        charges[place] = { tag, gain, units * price, cost * price, gain * 1000000, tag .. '%016d', seconds, shadow == 0 }
      else
        return nil
      end
    end
    return charges
  end

  -- The credits that a state lacks now, and whether more than a bucket can, as after a clock that stepped back; nothing if it is none.
  local function lack(state, tag, gain, credits)
    if not state then return 0 end
    local tick, fraction = tonumber(sub(state, 4, 19)), 0
    if #state ~= 19 then
      fraction = byte(state, 20) == 46 and tonumber(sub(state, 21))
      if not (fraction and fraction >= 0 and fraction % 1 == 0) then return nil end
    end
    if not (tick and tick >= 0 and tick % 1 == 0 and sub(state, 1, 3) == tag) then return nil end
    if tick < now then return 0 end
    local missing = (tick - now) * gain + fraction
    if missing > credits then return credits, true end
    return missing
  end

  local answers, lives, lacks, known, spans = {}, {}, {}, {}, {}
  local before, charges, count, first = nil, nil, 0, 0
  for index = 1, requests do
    local body = ARGV[index + 1]
    if #body == 1 then body = ARGV[byte(body) + 1] or '' end
    if body ~= before then
      charges = known[body] or charges_of(body)
      if not charges then break end
      known[body], before, count = charges, body, #charges
    end
    if first + count > keys then break end
    -- Several are looked at before any is charged.
    local fits, clamped = true, nil
    for place = 1, count do
      local charge, at = charges[place], first + place
      local missing, is_clamped = lack(held[places and places[at] or at], charge[1], charge[2], charge[3])
      if not missing then
        fits = nil
        break
      end
      lacks[place] = missing
      if missing + charge[4] > charge[3] and charge[8] then fits = false end
      if is_clamped then
        clamped = clamped or {}
        clamped[place] = true
      end
    end
    if fits == nil then break end
    for place = 1, count do
      local charge = charges[place]
      local gain, charged, left = charge[2], charge[4], lacks[place]
      local is_allowed = left + charged <= charge[3]
      local changes = charged > 0
      if fits and is_allowed and changes then
        left = left + charged
      else
        -- A clamp that a step of the clock made necessary is kept, so that it costs one interval, not the step.
        changes = clamped and clamped[place] and (is_allowed == fits or count == 1)
      end
      if changes then
        local at, rest = first + place, left % gain
        if places then at = places[at] end
        if rest == 0 then
          held[at] = format(charge[6], now + left / gain)
        else
          held[at] = format('%s%016d.%d', charge[1], now + (left - rest) / gain, rest)
        end
        local life = left / charge[5]
        life = life - life % 1 + SPARE_SECONDS
        lives[at] = life < charge[7] and charge[7] or life
      end
    end
    -- Only what is lacked is told, one number by itself: all else follows from that.
    if count == 1 then
      answers[index] = lacks[1]
    else
      answers[index] = pack(charges[0], 5, unpack(lacks, 1, count))
    end
    first = first + count
  end
  if first == keys and #answers == requests then
    for at = 1, keys do
      local life = lives[at]
      if life then
        if injected then life = life + INJECTED_SECONDS end
        local span = spans[life]
        if not span then
          span = format('%d', life)
          spans[life] = span
        end
        call('SET', KEYS[at], held[at], 'EX', span)
      end
    end
    return answers
  end
  -- Whatever was noted is forgotten.
  if #answers > 0 then held = call('MGET', unpack(KEYS)) end
end
