
local RECORD_BYTES, ANCESTOR_BYTES = 50, 58

-- The fields of a quota, validated; nil if they are out of range.
local function is_sound(kind, a, b, c, d, e)
  if kind == RESERVOIR then
    return whole(a, 1, EXACT) and whole(b, 1, EXACT) and whole(c, 1, EXACT) and whole(d, 0, c) and c * b + a <= EXACT
  elseif kind == EPOCH or kind == FIRST_HIT then
    return whole(a, 1, EXACT) and whole(b, 1, PERIOD_MAX)
  elseif kind == CALENDAR then
    return whole(a, 1, EXACT) and whole(b, 1, PERIOD_MAX) and whole(c, 0, EXACT) and whole(d, c, EXACT) and whole(e, 0, EXACT)
  elseif kind == SLIDING then
    return whole(a, 1, EXACT) and whole(b, 1, PERIOD_MAX) and whole(c, 1, PRECISION_MAX) and a * b <= EXACT and whole(d, 0, 1)
  elseif kind == LOG then
    return whole(a, 1, LOG_MAX) and whole(b, 1, PERIOD_MAX)
  elseif kind == PERMITS then
    return whole(a, 1, PERMITS_MAX) and whole(b, 1, PERIOD_MAX)
  end
  return false
end

-- The functions of a kind of state.
local function of_kind(kind)
  local made = kinds[kind]
  if type(made) == 'function' then
    made = made(kind)
    kinds[kind] = made
  end
  return made
end

-- Conversion of states, created when first needed.
local lineage
local function make_lineage()
  -- Reads an earlier quota of a state; nil if it is out of range.
  local function ancestor_at(body, at)
    local kind, a, b, c, d, e, old
    old = { unpack_at('<Bddddddd', body, at + 1) }
    kind, a, b, c, d, e = byte(body, at), old[2], old[3], old[4], old[5], old[6]
    if is_sound(kind, a, b, c, d, e) and whole(old[7], 0, EXACT) and whole(old[8], 0, EXACT) then
      old[9] = kind
      return old
    end
  end

  -- Converts a state through the quotas of its lineage. Returns nil and the state, or the error.
  local function carry_over(body, from, count, state, heir)
    local ancestors = {}
    for index = 1, count do
      ancestors[index] = ancestor_at(body, from + (index - 1) * ANCESTOR_BYTES)
      if not ancestors[index] then return REFUSED end
    end
    ancestors[count + 1] = heir
    for index = 1, count do
      local old, next_one = ancestors[index], ancestors[index + 1]
      local at = old[7] < now and old[7] or now
      if old[1] == 2 then
        state = heir[1] .. sub(state, 4)
      else
        state = of_kind(next_one[9]).inherit(
          state, old, at, heir[1], next_one[2], next_one[3], next_one[4], next_one[5], next_one[6])
      end
      if state == nil then return MALFORMED end
      if not state then return nil, false end
    end
    return nil, state
  end

  lineage = { ancestor_at = ancestor_at, carry_over = carry_over }
end

local changed, lasts_until, kept_for, changes = {}, {}, {}, 0

-- Schedules a write: what a key holds, until when the state matters, and the minimum lifetime in seconds. Writes run at
-- the end.
local function keep(index, state, idle_at, seconds)
  local place = places and places[index] or index
  held[place] = state
  if not lasts_until[place] then
    changes = changes + 1
    changed[changes] = place
  end
  lasts_until[place], kept_for[place] = idle_at or 0, seconds
end

-- Reads a charge at an offset of a request and decides it on a state. Returns the offset of the next charge, the
-- verdict and its numbers, the new state and until when it matters if admitted, the same if not, the minimum lifetime
-- in seconds, and whether it is in shadow. If it cannot be decided: nil, the error, and its detail. Units, if given,
-- replace the cost. A refund needs the instant of the charge; a dropped one says so in place of the verdict.
local function step(body, at, state, operation, units, charged)
  if #body < at + RECORD_BYTES - 1 then return nil, REFUSED, 'a request that is too short' end
  local kind, shadow, origin, tag, seconds, cost, a, b, c, d = unpack_at('<BBBc3I4ddddd', body, at)
  local next_at, e = at + RECORD_BYTES, 0
  if kind == CALENDAR then
    if #body < next_at + 7 then return nil, REFUSED, 'a request that is too short' end
    e = unpack_at('<d', body, next_at)
    next_at = next_at + 8
  end
  if not (cost >= 0 and cost <= EXACT + 1 and cost % 1 == 0) then return nil, REFUSED, 'a cost out of range' end
  if not is_sound(kind, a, b, c, d, e) then return nil, REFUSED, 'a quota out of range' end
  local ancestors, ancestors_at, ancestor_tag = 0, 0, nil
  if origin == 1 then
    if #body < next_at + 3 then return nil, REFUSED, 'a request that is too short' end
    ancestors, ancestor_tag, ancestors_at = unpack_at('<Bc3', body, next_at)
    next_at = ancestors_at + ancestors * ANCESTOR_BYTES
    if ancestors == 0 or #body < next_at - 1 then return nil, REFUSED, 'a request that is too short' end
  end
  if units then cost = units end
  local permit = kind == PERMITS and sub(body, at + 42, at + 49) or nil
  local is_carried = false
  if state and sub(state, 1, 3) ~= tag and kind ~= PERMITS then
    local from = sub(state, 1, 3)
    if origin == 2 then
      if operation == REFUND then return next_at end
      state, is_carried = of_kind(kind).exhausted(tag, a, b, c, d, e), true
    elseif ancestor_tag ~= from then
      return nil, UNKNOWN, from, next_at
    elseif operation == REFUND then
      if not lineage then make_lineage() end
      local old = lineage.ancestor_at(body, ancestors_at)
      if not old then return nil, REFUSED, 'a quota out of range' end
      local instant = old[7] < now and old[7] or now
      local next_state, idle_at = of_kind(old[9]).refund(state, instant, charged, cost, old[2], old[3], old[4], old[5], old[6])
      if idle_at == GONE then return next_at, GONE end
      if next_state == nil then return nil, idle_at or MALFORMED end
      return next_at, nil, nil, nil, nil, nil, next_state, idle_at, nil, nil, seconds
    else
      if not lineage then make_lineage() end
      local problem
      problem, state = lineage.carry_over(body, ancestors_at, ancestors, state, { tag, a, b, c, d, e, 0, 0, kind })
      if problem then return nil, problem, 'a lineage out of range' end
      is_carried = true
    end
  end
  if operation == CHARGE or operation == LEND then
    local verdict, time, remaining, next_unit, reset, next_state, idle_at, base, base_idle_at =
      of_kind(kind).charge(state, tag, cost, a, b, c, d, e, permit, is_carried)
    if verdict < 0 then return nil, verdict end
    return next_at, verdict, time, remaining, next_unit, reset, next_state, idle_at, base, base_idle_at, seconds, shadow
  end
  local next_state, idle_at
  if operation == DEBIT then
    next_state, idle_at = of_kind(kind).debit(state, tag, cost, a, b, c, d, e, permit)
  elseif operation == RENEW then
    if kind ~= PERMITS then return nil, REFUSED, 'a renewal of what is no permit' end
    if not state then return next_at end
    next_state, idle_at = of_kind(kind).renew(state, b, permit)
  elseif state then
    next_state, idle_at = of_kind(kind).refund(state, now, charged, cost, a, b, c, d, e, permit)
    if idle_at == GONE then return next_at, GONE end
  else
    return next_at
  end
  if next_state == nil then return nil, idle_at or MALFORMED end
  return next_at, nil, nil, nil, nil, nil, next_state, idle_at, nil, nil, seconds
end

-- Why a request was not decided.
local function problem_of(index, reason, detail)
  if reason == UNKNOWN then return '\1' .. pack('<Bc3', index, detail) end
  if reason == BOUNDS then return '\2' .. pack('<d', now) end
  if reason == MALFORMED then return '\3' .. pack('<B', index) end
  return '\4' .. (detail or 'a request out of range')
end

local answers, first = {}, 1
for request = 1, requests do
  local body = ARGV[request + 1]
  if #body == 1 then body = ARGV[byte(body) + 1] or '' end
  local operation, count = byte(body, 1, 2)
  local width = count and operation == LEND and count + count or count
  if not count or first + width - 1 > keys then
    return redis.error_reply('TOLLGATE a request whose keys are not those of its charges')
  end
  local at, items, problem, is_admitted, dropped = 3, {}, nil, true, 0
  -- The instants of a refund follow its charges.
  local instants = operation == REFUND and #body - count * 8 + 1 or nil
  if instants and instants < 3 then problem = problem_of(0, REFUSED, 'a refund that does not say of which charges') end
  if operation == RESET then
    for index = first, first + count - 1 do keep(index, false, 0, 0) end
  elseif operation == CHARGE or operation == REFUND or operation == DEBIT or operation == LEND
    or operation == RENEW
  then
    for index = 1, problem and 0 or count do
      local place = first + index - 1
      local charged = instants and unpack_at('<d', body, instants + (index - 1) * 8)
      if charged and not whole(charged, -EXACT, EXACT) then
        problem = problem_of(index - 1, REFUSED, 'an instant out of range')
        break
      end
      local item = { step(body, at, held[places and places[place] or place], operation, nil, charged) }
      if item[1] then
        items[index], item[13] = item, at
        at = item[1]
        if item[2] == GONE then dropped = dropped + 1 end
        if (operation == CHARGE or operation == LEND) and item[12] == 0 and item[2] > WAIT then is_admitted = false end
      elseif item[2] == UNKNOWN and (not problem or byte(problem) == 1) then
        -- Other tags may be unknown too; the reply lists all of them.
        problem = (problem or '\1') .. pack('<Bc3', index - 1, item[3])
        at = item[4]
      else
        problem = problem_of(index - 1, item[2], item[3])
        break
      end
    end
  else
    problem = problem_of(0, REFUSED, 'an operation that is not known')
  end
  if operation == LEND and not problem and not (lending and #body == at - 1 + count * WANT_BYTES) then
    problem = problem_of(0, REFUSED, 'a request that does not say what it wants')
  end
  for index = 1, operation == LEND and not problem and count or 0 do
    if not want_at(body, at + (index - 1) * WANT_BYTES) then problem = problem_of(0, REFUSED, 'a want out of range') end
  end
  if instants and not problem and at ~= instants then
    problem = problem_of(0, REFUSED, 'a refund that does not say of which charges')
  end
  local answer = problem or '\0'
  if not problem and (operation == CHARGE or operation == LEND) then
    answer = pack('<Bd', operation == LEND and 6 or 0, now)
  elseif not problem and dropped > 0 and dropped == count then
    answer = '\8'
  end
  for index = 1, problem and 0 or #items do
    local item, place = items[index], first + index - 1
    if operation ~= CHARGE and operation ~= LEND then
      if item[7] ~= nil then keep(place, item[7], item[8], item[11]) end
    else
      local is_allowed, lent, report = item[2] <= WAIT, 0, 0
      if operation == LEND then
        -- Lends what remains beyond the charge, as far as it is wanted and due.
        local due, part
        due, part, report = want_at(body, at + (index - 1) * WANT_BYTES)
        if is_allowed and is_admitted then lent = due_of(item[4], item[11], due, part) end
        item[11] = 0
        if lent > 0 then
          local state = item[7]
          if state == nil then state = held[places and places[place] or place] end
          local more = { step(body, item[13], state, CHARGE, lent) }
          if more[2] == ALLOW then
            item[4], item[5], item[6], item[7], item[8] = more[4], more[5], more[6], more[7], more[8]
          else
            lent = 0
          end
        end
      end
      if (is_admitted == is_allowed or count == 1) and item[7] ~= nil then
        keep(place, item[7], item[8], item[11])
      elseif item[9] ~= nil then
        keep(place, item[9], item[10], item[11])
      end
      if is_allowed and not is_admitted then
        -- The answer is that of the counter without the charge.
        local peeked = { step(body, item[13], held[places and places[place] or place], CHARGE, 0) }
        item[2], item[3], item[4], item[5], item[6] = ALLOW, 0, peeked[4], peeked[5], peeked[6]
        if peeked[9] ~= nil then keep(place, peeked[9], peeked[10], item[11]) end
      end
      answer = answer .. pack('<Bdddd', item[2], item[3], item[4], item[5], item[6])
      if operation == LEND then
        local kind, a, _, c = byte(body, item[13]), unpack_at('<ddd', body, item[13] + 18)
        local demand_at = place + count
        local reports, demand =
          weigh(held[places and places[demand_at] or demand_at], report, item[4] * 2 < (kind == RESERVOIR and c or a))
        if reports then keep(demand_at, reports, 0, DEMAND_SECONDS) end
        answer = answer .. pack('<dd', lent, demand)
      end
    end
  end
  answers[request] = answer
  first = first + width
end
if first ~= keys + 1 then return redis.error_reply('TOLLGATE more keys than charges') end

for index = 1, changes do
  local place = changed[index]
  local state = held[place]
  if state then
    local left = lasts_until[place] - now
    local seconds = left > 0 and (left - left % 1000000) / 1000000 + SPARE_SECONDS or SPARE_SECONDS
    if seconds < kept_for[place] then seconds = kept_for[place] end
    if injected then seconds = seconds + INJECTED_SECONDS end
    call('SET', KEYS[place], state, 'EX', format('%d', seconds))
  else
    call('DEL', KEYS[place])
  end
end
return answers
