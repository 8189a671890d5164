
-- Sliding window. The state is the tag, a W, and in MessagePack the number of the newest sub-window and the counts of
-- it and those before it, newest first. Fields: the limit, the length of a sub-window, the number of sub-windows, and
-- whether the oldest counts in full.

kinds[SLIDING] = function()
  local made = {}

  -- The newest sub-window's number and the counts; nil if the state is malformed.
  local function read(state)
    if byte(state, 4) ~= 87 then return nil end
    local parts = { pcall(cmsgpack.unpack, sub(state, 5)) }
    local length = #parts
    if not parts[1] or length < 3 or length > PRECISION_MAX + 3 then return nil end
    local counts = {}
    for index = 2, length do
      local part = parts[index]
      if type(part) ~= 'number' or not whole(part, 0, EXACT) then return nil end
      counts[index - 2] = part
    end
    local newest = counts[0]
    counts[0] = nil
    return newest, counts
  end

  local function write(tag, newest, counts)
    local length = #counts
    while length > 1 and counts[length] == 0 do length = length - 1 end
    return tag .. 'W' .. cmsgpack.pack(newest, unpack(counts, 1, length))
  end

  -- When a state becomes equal to that of an unused key.
  local function idle_at(newest, counts, length, precision)
    for position = 1, #counts do
      if counts[position] > 0 then return (newest + precision + 2 - position) * length end
    end
    return 0
  end

  -- How many units of the oldest sub-window count after the window has left this many ticks of it.
  local function covered(units, length, offset, strict)
    if strict == 1 or units == 0 or offset == 0 then return units end
    local share = units * (length - offset)
    if share >= 18446744073709551616 then return units end -- More than any quota can have counted.
    if share > EXACT then
      -- The share that has left is rounded down, so the share that counts is rounded up.
      return units - multiply_divide(offset, units, length)
    end
    local rest = share % length
    local whole_share = (share - rest) / length
    return rest > 0 and whole_share + 1 or whole_share
  end

  -- The sub-window of an instant, and the offset into it. A clock behind the newest sub-window stands still at its
  -- start.
  local function place(newest, at, length)
    local offset = at % length
    local index = (at - offset) / length
    if index < newest then return newest, 0 end
    return index, offset
  end

  local function used(newest, counts, index, offset, length, precision, strict)
    local oldest = precision - (index - newest)
    if oldest < 0 then return 0 end
    local recent = 0
    for position = 1, oldest < #counts and oldest or #counts do recent = recent + counts[position] end
    return recent + covered(counts[oldest + 1] or 0, length, offset, strict)
  end

  -- The first instant at which at most this many units count, given that more count now.
  local function falls_to(newest, counts, index, most, length, precision, strict)
    local younger = 0
    for position = 1, #counts do younger = younger + counts[position] end
    for position = #counts, 1, -1 do
      local units = counts[position]
      younger = younger - units
      local behind = precision - (position - 1)
      local oldest_at = newest + (behind > 0 and behind or 0)
      if oldest_at >= index and younger <= most then
        if units <= most - younger then return oldest_at * length end
        if strict == 0 then
          local product = (most - younger) * length
          local offset = length - (product - product % units) / units
          if offset < length then return oldest_at * length + offset end
        end
      end
    end
    return (newest + precision + 1) * length
  end

  -- Adds units to a sub-window, which becomes the newest.
  local function add(newest, counts, index, units, precision)
    local behind = index - newest
    local kept = precision + 1 - behind
    local next_counts = {}
    if kept >= 0 and #counts > 0 then
      for position = 1, behind do next_counts[position] = 0 end
      for position = 1, kept < #counts and kept or #counts do next_counts[behind + position] = counts[position] end
    end
    next_counts[1] = (next_counts[1] or 0) + units
    return next_counts
  end

  -- The state now, and whether it differs from the stored one: it was idle, or it was clamped because it was more than
  -- a window ahead.
  local function load(state, at, length, precision, is_carried)
    if not state then return 0, {}, is_carried end
    local newest, counts = read(state)
    if not newest then return nil end
    local is_changed = is_carried
    if not is_carried and idle_at(newest, counts, length, precision) <= at then return 0, {}, true end
    local furthest = (at - at % length) / length + precision
    if newest > furthest then newest, is_changed = furthest, true end
    return newest, counts, is_changed
  end

  function made.charge(state, tag, cost, limit, length, precision, strict, _, _, is_carried)
    local newest, counts, is_changed = load(state, now, length, precision, is_carried)
    if not newest then return MALFORMED end
    local base, base_idle_at
    if is_changed then
      base_idle_at = idle_at(newest, counts, length, precision)
      base = base_idle_at > 0 and write(tag, newest, counts) or false
    end
    local index, offset = place(newest, now, length)
    local units = used(newest, counts, index, offset, length, precision, strict)
    local verdict, time, next_state, next_idle_at = ALLOW, 0, nil, nil
    if cost > limit then
      verdict = NEVER
    elseif cost > 0 then
      if units + cost <= limit then
        counts = add(newest, counts, index, cost, precision)
        newest = index
        next_state, next_idle_at = write(tag, newest, counts), idle_at(newest, counts, length, precision)
        units = used(newest, counts, index, offset, length, precision, strict)
      else
        verdict, time = DENY, falls_to(newest, counts, index, limit - cost, length, precision, strict) - now
      end
    end
    local remaining, next_unit, reset = units < limit and limit - units or 0, 0, 0
    if units > 0 then
      next_unit = falls_to(newest, counts, index, limit - remaining - 1, length, precision, strict) - now
      reset = falls_to(newest, counts, index, 0, length, precision, strict) - now
    end
    return verdict, time, remaining, next_unit, reset, next_state, next_idle_at, base, base_idle_at
  end

  -- Refunds to the sub-window of the charge, then to those before it. If that is unknown, to the oldest that count.
  function made.refund(state, at, charged, units, limit, length, precision, strict)
    local newest, counts = load(state, at, length, precision, true)
    if not newest then return nil end
    local index, offset = place(newest, at, length)
    local first, last, towards = 1, #counts, 1
    if charged >= 0 then
      local behind = newest - (charged - charged % length) / length
      if behind > 0 then first = behind + 1 end
    else
      -- The oldest that count, if the earliest that is possible does.
      local earliest = at + 1 + charged
      if earliest < 0 then earliest = 0 end
      if (earliest - earliest % length) / length + precision < index then units = 0 end
      local counting = precision + 1 - (index - newest)
      first, last, towards = counting < last and counting or last, 1, -1
    end
    for position = first, last, towards do
      local taken = units < counts[position] and units or counts[position]
      counts[position] = counts[position] - taken
      units = units - taken
    end
    if used(newest, counts, index, offset, length, precision, strict) == 0 then return false end
    return write(sub(state, 1, 3), newest, counts), idle_at(newest, counts, length, precision)
  end

  function made.debit(state, tag, units, limit, length, precision, strict)
    local newest, counts = load(state, now, length, precision, false)
    if not newest then return nil end
    local index, offset = place(newest, now, length)
    local room = limit - used(newest, counts, index, offset, length, precision, strict)
    if room <= 0 then return state or false, idle_at(newest, counts, length, precision) end
    counts = add(newest, counts, index, units < room and units or room, precision)
    return write(tag, index, counts), idle_at(index, counts, length, precision)
  end

  -- Equal sub-windows keep their counts. Others start with what still counts, all in the newest one; both may be above a
  -- lowered limit, which must not forget when it is raised again.
  function made.inherit(state, old, at, tag, limit, length, precision)
    if old[1] == 1 then return tag .. sub(state, 4) end
    local newest, counts = load(state, at, old[3], old[4], true)
    if not newest then return nil end
    local index, offset = place(newest, at, old[3])
    local units = used(newest, counts, index, offset, old[3], old[4], old[5])
    if units == 0 then return false end
    return write(tag, (at - at % length) / length, { units })
  end

  function made.exhausted(tag, limit, length)
    return write(tag, (now - now % length) / length, { limit })
  end

  return made
end
