
-- Concurrency. The state is the tag, a P, four bytes of all units in flight, and eighteen bytes for each permit in the
-- order of expiry: the microsecond in seven, its units in three, its name in eight. Fields: the limit, the lifetime of
-- a permit.

kinds[PERMITS] = function()
  local made = {}
  local HEAD, ENTRY = 8, 18

  local function entry(state, index)
    return unpack_at('<I7I3', state, HEAD + 1 + (index - 1) * ENTRY)
  end

  -- The number of permits and their units; nil if the state is malformed.
  local function read(state)
    if not state then return 0, 0 end
    if byte(state, 4) ~= 80 or (#state - HEAD) % ENTRY ~= 0 or #state <= HEAD then return nil end
    return (#state - HEAD) / ENTRY, (unpack_at('<I4', state, 5))
  end

  local function write(tag, units, permits)
    if permits == '' then return false end
    return tag .. 'P' .. pack('<I4', units) .. permits
  end

  -- The index of a permit; nil if there is none.
  local function find(state, permit)
    local at = HEAD + 1
    while true do
      at = string.find(state, permit, at, true)
      if not at then return nil end
      local index = (at - HEAD - 11) / ENTRY + 1
      if index >= 1 and index % 1 == 0 then return index end
      at = at + 1
    end
  end

  -- The number of expired permits and their units.
  local function expired(state, length)
    local count, units = 0, 0
    while count < length do
      local expires_at, held = entry(state, count + 1)
      if expires_at > now then break end
      count, units = count + 1, units + held
    end
    return count, units
  end

  -- The first instant at which at most this many units are in flight.
  local function falls_to(state, length, units, most)
    for index = 1, length do
      local expires_at, held = entry(state, index)
      units = units - held
      if units <= most then return expires_at end
    end
    return 0
  end

  -- Clamps expiries that are more than two lifetimes ahead.
  local function clamp(state, length, life)
    local furthest = now + life + life
    if length == 0 or entry(state, length) <= furthest then return state end
    local first = length
    while first > 1 and entry(state, first - 1) > furthest do first = first - 1 end
    local parts = { sub(state, 1, HEAD + (first - 1) * ENTRY) }
    for index = first, length do
      local start = HEAD + 1 + (index - 1) * ENTRY
      parts[#parts + 1] = pack('<I7', furthest) .. sub(state, start + 7, start + ENTRY - 1)
    end
    return table.concat(parts)
  end

  -- The permits without one, and the units that it held.
  local function without(state, index)
    local start = HEAD + 1 + (index - 1) * ENTRY
    local _, held = entry(state, index)
    return sub(state, HEAD + 1, start - 1) .. sub(state, start + ENTRY), held
  end

  -- The state with a new permit.
  local function insert(tag, permits, units, permit, held, life)
    local expires_at = now + life
    local record = pack('<I7I3', expires_at, held) .. permit
    local at = #permits
    while at > 0 and unpack_at('<I7', permits, at - ENTRY + 1) > expires_at do at = at - ENTRY end
    return write(tag, units, sub(permits, 1, at) .. record .. sub(permits, at + 1))
  end

  function made.charge(state, tag, cost, limit, life, _, _, _, permit)
    local length, held = read(state)
    if not length then return MALFORMED end
    local base, base_idle_at
    if state and sub(state, 1, 3) == tag and (entry(state, length)) <= now then
      state, length, held, base, base_idle_at = false, 0, 0, false, 0
    elseif state then
      local clamped = clamp(tag .. sub(state, 4), length, life)
      if clamped ~= state then
        state, base, base_idle_at = clamped, clamped, (entry(clamped, length))
      end
    end
    local gone, units = 0, 0
    if state then gone, units = expired(state, length) end
    units = held - units
    local verdict, time, next_state, next_idle_at = ALLOW, 0, nil, nil
    if cost > limit then
      verdict = NEVER
    elseif cost > 0 then
      if units + cost <= limit then
        local rest = state and write(tag, units, sub(state, HEAD + 1 + gone * ENTRY))
        local index, before, others = rest and find(rest, permit), 0, rest and sub(rest, HEAD + 1) or ''
        if index then others, before = without(rest, index) end
        if state and (gone > 0 or index) then
          -- Expired permits stay dropped, and a renewed lifetime stays renewed, if the admission is undone.
          base = rest
          if index then base = insert(tag, others, units, permit, before, life) end
          base_idle_at = base and (entry(base, read(base)))
        end
        next_state = insert(tag, others, units + cost, permit, before + cost, life)
        state, units = next_state, units + cost
        length, held = read(state)
        next_idle_at = (entry(state, length))
      else
        verdict, time = DENY, falls_to(state, length, held, limit - cost) - now
      end
    end
    local remaining, next_unit, reset = units < limit and limit - units or 0, 0, 0
    if units > 0 then
      next_unit = falls_to(state, length, held, limit - remaining - 1) - now
      reset = entry(state, length) - now
    end
    return verdict, time, remaining, next_unit, reset, next_state, next_idle_at, base, base_idle_at
  end

  -- Releases a permit. A second release, or one after expiry, changes nothing.
  function made.refund(state, at, _, _, _, _, _, _, _, permit)
    local length, held = read(state)
    if not length then return nil end
    local index = find(state, permit)
    if index and entry(state, index) > at then
      local others, units = without(state, index)
      state = write(sub(state, 1, 3), held - units, others)
    end
    return state, state and (entry(state, (read(state))))
  end

  -- Renews a permit. An expired or released one stays gone.
  function made.renew(state, life, permit)
    local length, held = read(state)
    if not length then return nil end
    local index = find(state, permit)
    if index and entry(state, index) > now then
      local others, units = without(state, index)
      state = insert(sub(state, 1, 3), others, held, permit, units, life)
    end
    return state, (entry(state, (read(state))))
  end

  -- Records a permit that was granted without the store, whatever the limit: it is in use. A known permit stays as it
  -- is, so a second report changes nothing.
  function made.debit(state, tag, units, limit, life, _, _, _, permit)
    local length, held = read(state)
    if not length then return nil end
    if state then
      local gone, freed = expired(state, length)
      held = held - freed
      state = write(tag, held, sub(state, HEAD + 1 + gone * ENTRY))
    end
    if units > 0 and units <= limit and not (state and find(state, permit)) then
      state = insert(tag, state and sub(state, HEAD + 1) or '', held + units, permit, units, life)
    end
    return state or false, state and (entry(state, (read(state))))
  end

  return made
end
