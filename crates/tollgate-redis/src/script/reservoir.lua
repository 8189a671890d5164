
-- Token bucket, GCRA and leaky bucket. The state is the tag and sixteen digits of the microsecond at which the bucket
-- is full, which Redis stores as one integer; after a point, the missing credits beyond it, if any.
-- Fields: credits gained per microsecond, credits per unit, units when full, units admitted without waiting.

kinds[RESERVOIR] = function()
  -- The missing credits at an instant; nil if the state is malformed.
  local function missing_at(state, at, gain, credits)
    if not state then return 0 end
    local tick, fraction = tonumber(sub(state, 4, 19)), 0
    if #state ~= 19 then fraction = byte(state, 20) == 46 and tonumber(sub(state, 21)) end
    if not (tick and fraction and whole(tick, 0, EXACT) and whole(fraction, 0, EXACT)) then return nil end
    if tick < at then return 0 end
    local missing = (tick - at) * gain + fraction
    if missing > credits then return credits end
    return missing
  end

  -- The state of a bucket that lacks credits at an instant.
  local function lacking(tag, missing, gain, at)
    local fraction = missing % gain
    local tick = at + (missing - fraction) / gain
    if fraction == 0 then return tag .. format('%016d', tick) end
    return tag .. format('%016d.%d', tick, fraction)
  end

  local function charge_reservoir(state, tag, cost, gain, unit_credits, units, immediate_units)
    local credits = units * unit_credits
    local missing = missing_at(state, now, gain, credits)
    if not missing then return MALFORMED end
    local left, verdict, time = missing, ALLOW, 0
    local rest
    if cost > units then
      verdict = NEVER
    else
      local short = cost * unit_credits - (credits - missing)
      if short > 0 then
        rest = short % gain
        verdict, time = DENY, (short - rest) / gain
        if rest > 0 then time = time + 1 end
      else
        left = missing + cost * unit_credits
        local queued = left - immediate_units * unit_credits
        if cost > 0 and queued > 0 then
          rest = queued % gain
          verdict, time = WAIT, (queued - rest) / gain
          if rest > 0 then time = time + 1 end
        end
      end
    end
    rest = left % gain
    local reset = (left - rest) / gain
    if rest > 0 then reset = reset + 1 end
    local available = credits - left
    local beyond = available % unit_credits
    local next_unit = 0
    if left > 0 then
      local to_next = unit_credits - beyond
      rest = to_next % gain
      next_unit = (to_next - rest) / gain
      if rest > 0 then next_unit = next_unit + 1 end
    end
    local next_state
    if (verdict <= WAIT and cost > 0) or missing == credits then
      -- Out of range only after the clock stepped back or the quota shrank. The clamped state is written, so that the
      -- step costs one interval.
      next_state = lacking(tag, left, gain, now)
      if next_state == state then next_state = nil end
    end
    return verdict, time, (available - beyond) / unit_credits, next_unit, reset, next_state, now + reset
  end

  local kind = { charge = charge_reservoir }

  -- What was refilled since the charge is not refunded again.
  function kind.refund(state, at, charged, units, gain, unit_credits, full)
    local credits = full * unit_credits
    local missing = missing_at(state, at, gain, credits)
    if not missing then return nil end
    local back = (units < full and units or full) * unit_credits
    local elapsed = charged < 0 and -1 - charged or at - charged
    if elapsed > 0 then back = back - elapsed * gain end
    if back > 0 then missing = missing - back end
    if missing < 0 then missing = 0 end
    local fraction = missing % gain
    local idle = at + (missing - fraction) / gain
    if fraction > 0 then idle = idle + 1 end
    return lacking(sub(state, 1, 3), missing, gain, at), idle
  end

  function kind.debit(state, tag, units, gain, unit_credits, full)
    local credits = full * unit_credits
    local missing = missing_at(state, now, gain, credits)
    if not missing then return nil end
    missing = units >= full and credits or missing + units * unit_credits
    if missing > credits then missing = credits end
    local fraction = missing % gain
    local idle = now + (missing - fraction) / gain
    if fraction > 0 then idle = idle + 1 end
    return lacking(tag, missing, gain, now), idle
  end

  -- The credits that a bucket lacks when its quota becomes active: available units are kept up to its capacity, and a
  -- fraction of a unit is rounded down.
  function kind.inherit(state, old, at, tag, gain, unit_credits, units)
    local old_unit_credits, old_credits = old[3], old[4] * old[3]
    -- Further ahead than the old quota allows: another node has since counted under it, so the state is read at the
    -- current time.
    local tick = at < now and tonumber(sub(state, 4, 19))
    if tick and (tick - at) * old[2] > old_credits then at = now end
    local missing = missing_at(state, at, old[2], old_credits)
    if not missing then return nil end
    if old[2] == gain and old_unit_credits == unit_credits and old[4] == units then return tag .. sub(state, 4) end
    if missing > 0 then
      local available = old_credits - missing
      local rest = available % old_unit_credits
      local available_units = (available - rest) / old_unit_credits
      if available_units >= units then
        missing = 0
      else
        missing = units * unit_credits - available_units * unit_credits - multiply_divide(rest, unit_credits, old_unit_credits)
        if missing < 0 then missing = 0 end
      end
    end
    return lacking(tag, missing, gain, at)
  end

  function kind.exhausted(tag, gain, unit_credits, units)
    return lacking(tag, units * unit_credits, gain, now)
  end

  return kind
end
