
-- Sliding log. The state is the tag, an L, three bytes of the units dropped, and ten bytes for each instant with units,
-- oldest first: the microsecond in seven, and in three the running total of units. Totals wrap at 2^24, far above what
-- a log holds. A search unpacks only what it compares. Fields: the limit, the period.

kinds[LOG] = function()
  local made = {}
  local HEAD, ENTRY, AROUND = 7, 10, 16777216

  local function entry(state, index)
    return unpack_at('<I7I3', state, HEAD + 1 + (index - 1) * ENTRY)
  end

  -- The number of entries and the units dropped; nil if the state is malformed.
  local function read(state)
    if byte(state, 4) ~= 76 or (#state - HEAD) % ENTRY ~= 0 or #state <= HEAD then return nil end
    return (#state - HEAD) / ENTRY, (unpack_at('<I3', state, 5))
  end

  -- How many entries have expired at an instant.
  local function expired(state, length, at, period)
    local low, high = 0, length
    while low < high do
      local middle = low + high
      middle = (middle - middle % 2) / 2
      if entry(state, middle + 1) + period <= at then low = middle + 1 else high = middle end
    end
    return low
  end

  -- The units up to and including an entry.
  local function total(state, index, forgotten)
    if index == 0 then return 0 end
    local _, units = entry(state, index)
    return (units - forgotten) % AROUND
  end

  -- The first instant at which at most this many units count, given that more count now.
  local function falls_to(state, length, forgotten, most, period)
    local surplus = total(state, length, forgotten) - most
    local low, high = 0, length
    while low < high do
      local middle = low + high
      middle = (middle - middle % 2) / 2
      if total(state, middle + 1, forgotten) < surplus then low = middle + 1 else high = middle end
    end
    if low >= length then return 0 end
    return (entry(state, low + 1)) + period
  end

  -- Clamps entries that are more than a window ahead.
  local function clamp(state, length, at, period)
    local furthest = at + period
    if (entry(state, length)) <= furthest then return state end
    local first = length
    while first > 1 and entry(state, first - 1) > furthest do first = first - 1 end
    local parts = { sub(state, 1, HEAD + (first - 1) * ENTRY) }
    for index = first, length do
      local _, units = entry(state, index)
      parts[#parts + 1] = pack('<I7I3', furthest, units)
    end
    return table.concat(parts)
  end

  -- The log without its first entries; nil if none remain.
  local function forget(state, length, count)
    if count == 0 then return state, length end
    if count == length then return false, 0 end
    local _, units = entry(state, count)
    return sub(state, 1, 4) .. pack('<I3', units) .. sub(state, HEAD + 1 + count * ENTRY), length - count
  end

  -- Appends units at an instant that is not before the last entry.
  local function add(state, tag, length, at, units)
    if not state then return tag .. 'L\0\0\0' .. pack('<I7I3', at, units) end
    local last, before = entry(state, length)
    local sum = (before + units) % AROUND
    if last == at then return tag .. sub(state, 4, -1 - ENTRY) .. pack('<I7I3', at, sum) end
    return tag .. sub(state, 4) .. pack('<I7I3', at, sum)
  end

  -- The log at an instant: the log, its length, the units dropped, the instant to decide at, the number of expired
  -- entries, the units that count, and whether it differs from the stored log.
  local function load(state, at, period, is_carried)
    if not state then return false, 0, 0, at, 0, 0, is_carried end
    local length, forgotten = read(state)
    if not length then return nil end
    if not is_carried and (entry(state, length)) + period <= at then return false, 0, 0, at, 0, 0, true end
    local clamped = clamp(state, length, at, period)
    local reached = (entry(clamped, length))
    if reached < at then reached = at end
    local gone = expired(clamped, length, reached, period)
    local units = total(clamped, length, forgotten) - total(clamped, gone, forgotten)
    return clamped, length, forgotten, reached, gone, units, is_carried or clamped ~= state
  end

  function made.charge(state, tag, cost, limit, period, _, _, _, _, is_carried)
    local log, length, forgotten, at, gone, units, is_changed = load(state, now, period, is_carried)
    if log == nil then return MALFORMED end
    local base, base_idle_at
    if is_changed then
      base, base_idle_at = log and tag .. sub(log, 4), log and (entry(log, length)) + period
    end
    local verdict, time, next_state, next_idle_at = ALLOW, 0, nil, nil
    if cost > limit then
      verdict = NEVER
    elseif cost > 0 then
      if units + cost <= limit then
        local rest, left = forget(log, length, gone)
        if gone > 0 and state then
          -- An admission drops expired entries, even if another counter denies and it is undone.
          base, base_idle_at = rest and tag .. sub(rest, 4), rest and (entry(rest, left)) + period
        end
        log = add(rest, tag, left, at, cost)
        length, forgotten = read(log)
        units = units + cost
        next_state, next_idle_at = log, at + period
      else
        verdict, time = DENY, falls_to(log, length, forgotten, limit - cost, period) - now
      end
    end
    local remaining, next_unit, reset = units < limit and limit - units or 0, 0, 0
    if units > 0 then
      next_unit = falls_to(log, length, forgotten, limit - remaining - 1, period) - now
      reset = falls_to(log, length, forgotten, 0, period) - now
    end
    return verdict, time, remaining, next_unit, reset, next_state, next_idle_at, base, base_idle_at
  end

  -- How many entries are up to a total.
  local function reaching(state, length, forgotten, most)
    local low, high = 0, length
    while low < high do
      local middle = low + high
      middle = (middle - middle % 2) / 2
      if total(state, middle + 1, forgotten) <= most then low = middle + 1 else high = middle end
    end
    return low
  end

  -- The entries between two indexes with shifted totals, in chunks, because a log may be long.
  local CHUNK = 64
  local function shifted(state, from, to, by)
    local parts = {}
    while from <= to do
      local count = to - from + 1 < CHUNK and to - from + 1 or CHUNK
      local shape = '<' .. string.rep('I7I3', count)
      local numbers = { unpack_at(shape, state, HEAD + 1 + (from - 1) * ENTRY) }
      for place = 2, count + count, 2 do numbers[place] = (numbers[place] + by) % AROUND end
      parts[#parts + 1] = pack(shape, unpack(numbers, 1, count + count))
      from = from + count
    end
    return table.concat(parts)
  end

  -- The log without the units between two totals. Totals are relative to the units dropped, so either the entries
  -- before or those after are rewritten, whichever are fewer.
  local function cut(state, length, forgotten, from, to)
    local before, after = reaching(state, length, forgotten, from), reaching(state, length, forgotten, to) + 1
    local up, down = 0, from - to
    if before < length - after then up, down = to - from, 0 end
    local head = up == 0 and sub(state, HEAD + 1, HEAD + before * ENTRY) or shifted(state, 1, before, up)
    local tail = down == 0 and sub(state, HEAD + 1 + (after - 1) * ENTRY) or shifted(state, after, length, down)
    -- One entry may keep a part of its units.
    if total(state, before, forgotten) < from then
      head = head .. pack('<I7I3', (entry(state, before + 1)), (from + forgotten + up) % AROUND)
    end
    return sub(state, 1, 4) .. pack('<I3', (forgotten + up) % AROUND) .. head .. tail
  end

  -- Refunds units of the instant of the charge, then older ones, never later ones. If the instant is unknown, the
  -- oldest that count.
  function made.refund(state, at, charged, units, limit, period)
    local log, length, forgotten, reached, gone, counted = load(state, at, period, true)
    if log == nil then return nil end
    local from, to = total(log, gone, forgotten), nil
    if charged >= 0 then
      -- Units that expired with the instant need no refund.
      to = total(log, expired(log, length, charged + period, period), forgotten)
      if to - units > from then from = to - units end
    else
      -- The oldest that count, if the earliest that is possible does.
      local earliest = at + 1 + charged
      if earliest < 0 then earliest = 0 end
      if earliest + period <= reached then units = 0 end
      to = from + (units < counted and units or counted)
    end
    if to > from then
      if counted <= to - from then return false end
      log = cut(log, length, forgotten, from, to)
      length = read(log)
    elseif counted == 0 then
      return false
    end
    return log, (entry(log, length)) + period
  end

  function made.debit(state, tag, units, limit, period)
    local log, length, _, at, gone, counted = load(state, now, period, false)
    if log == nil then return nil end
    local room = limit - counted
    if room <= 0 then return log and tag .. sub(log, 4), (entry(log, length)) + period end
    local rest, left = forget(log, length, gone)
    return add(rest, tag, left, at, units < room and units or room), at + period
  end

  -- The log itself: its instants are valid under any period. Entries that had expired under the old period are dropped.
  function made.inherit(state, old, at, tag)
    local log, length, _, _, gone = load(state, at, old[3], true)
    if log == nil then return nil end
    log = forget(log, length, gone)
    return log and tag .. sub(log, 4)
  end

  function made.exhausted(tag, limit)
    return add(false, tag, 0, now, limit)
  end

  return made
end
