
-- Fixed window. The state is the tag, ten digits of the second at which the window ends, and six digits of the count,
-- which Redis stores as one integer. If these do not fit: sixteen digits of the microsecond, a point, and the count.
-- Fields: the limit, the period, and for a calendar the start and the end of the current window and the end of the next
-- one, which may be missing.

local function make_fixed_window(kind)
  local made = {}

  local function read(state)
    local ends_at, count
    if #state == 19 then
      ends_at, count = tonumber(sub(state, 4, 13)), tonumber(sub(state, 14, 19))
      ends_at = ends_at and ends_at * 1000000
    elseif byte(state, 20) == 46 then
      ends_at, count = tonumber(sub(state, 4, 19)), tonumber(sub(state, 21))
    end
    if ends_at and count and whole(ends_at, 0, EXACT) and whole(count, 0, EXACT) then return ends_at, count end
  end

  local function write(tag, ends_at, count)
    if count < 1000000 and ends_at % 1000000 == 0 then
      return tag .. format('%010d%06d', ends_at / 1000000, count)
    end
    return tag .. format('%016d.%d', ends_at, count)
  end

  -- The end of an unused key's window; nil if the calendar bounds are of another time.
  local function window_end(at, period, starts, ends)
    if kind == EPOCH then return at - at % period + period end
    if kind == FIRST_HIT then return at + period end
    if at >= starts and at < ends then return ends end
  end

  -- The window at an instant, with its count: the state's window until it ends, clamped if it is further ahead than a
  -- plausible step of the clock, then a new one. The third result is the clamped end of the state's window. Nil if
  -- bounds are missing.
  local function current(ends_at, count, at, period, starts, ends, latest)
    if ends_at - at > period then
      local bound
      if kind == CALENDAR then
        if not (at >= starts and at < ends) then return nil end
        if ends_at > ends then
          if latest == 0 then return nil end
          bound = latest
        else
          bound = ends_at
        end
      else
        bound = window_end(at, period) + period
      end
      if ends_at > bound then ends_at = bound end
    end
    if ends_at > at and count > 0 then return ends_at, count, ends_at end
    local fresh = window_end(at, period, starts, ends)
    if not fresh then return nil end
    return fresh, 0, ends_at
  end

  function made.charge(state, tag, cost, limit, period, starts, ends, latest)
    local old_end, old_count = 0, 0
    if state then
      old_end, old_count = read(state)
      if not old_end then return MALFORMED end
      if old_end <= now then old_end, old_count = 0, 0 end
    end
    local ends_at, count, drawn = current(old_end, old_count, now, period, starts, ends, latest)
    if not ends_at then return BOUNDS end
    local verdict, time, next_state = ALLOW, 0, nil
    if cost > limit then
      verdict = NEVER
    elseif cost > 0 and cost > limit - count then
      verdict, time = DENY, ends_at - now
    elseif cost > 0 then
      count = count + cost
      next_state = write(tag, ends_at, count)
    end
    if not next_state and drawn ~= old_end then next_state = write(tag, drawn, old_count) end
    local remaining = count < limit and limit - count or 0
    local left = count > 0 and ends_at - now or 0
    return verdict, time, remaining, left, left, next_state, next_state and ends_at
  end

  function made.refund(state, at, charged, units, limit, period, starts, ends, latest)
    local ends_at, count = read(state)
    if not ends_at then return nil end
    ends_at, count = current(ends_at, count, at, period, starts, ends, latest)
    if not ends_at then return nil, BOUNDS end
    -- A refund that belongs to another window, or may, is dropped. Of a calendar only the current window is known.
    local began, earliest = ends_at - period, charged < 0 and at + 1 + charged or charged
    if kind == CALENDAR then
      if at < starts or at >= ends then return nil, BOUNDS end
      began = ends_at == ends and starts or ends_at
    end
    if earliest < began or earliest >= ends_at then return nil, GONE end
    if count <= units then return false end
    return write(sub(state, 1, 3), ends_at, count - units), ends_at
  end

  function made.debit(state, tag, units, limit, period, starts, ends, latest)
    local ends_at, count = 0, 0
    if state then
      ends_at, count = read(state)
      if not ends_at then return nil end
    end
    ends_at, count = current(ends_at, count, now, period, starts, ends, latest)
    if not ends_at then return nil, BOUNDS end
    if count < limit then count = units < limit - count and count + units or limit end
    if count == 0 then return false end
    return write(tag, ends_at, count), ends_at
  end

  -- Equal windows keep their count, even above a lowered limit. Other windows start with the whole count.
  function made.inherit(state, old, at, tag, limit, period)
    if old[1] == 1 then return tag .. sub(state, 4) end
    local ends_at, count = read(state)
    if not ends_at then return nil end
    if ends_at <= at or count == 0 then return false end
    ends_at = kind == CALENDAR and old[8] or window_end(at, period)
    return write(tag, ends_at, count)
  end

  function made.exhausted(tag, limit, period, starts, ends)
    return write(tag, window_end(now, period, starts, ends) or now + period, limit)
  end

  return made
end
kinds[EPOCH], kinds[FIRST_HIT], kinds[CALENDAR] = make_fixed_window, make_fixed_window, make_fixed_window
