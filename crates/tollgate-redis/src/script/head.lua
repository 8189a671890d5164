-- Tollgate's counters in Redis. Each function has a counterpart in Rust and must give the same answers; read
-- crates/tollgate/src/algorithm first.
--
-- KEYS    The counters of all requests, request after request. For a request that lends, their demand keys follow.
-- ARGV[1] A plus sign if a key may be repeated, a star if units are lent, a comma for both; then, in tests only, the
--   time in microseconds. In service Redis's clock decides.
-- ARGV[2] and on: one request each, or one byte with the number of an earlier, equal one. A request is a byte for its
--   operation, a byte for the number of charges, and the charges:
--   the kind; whether it is in shadow; the origin of a state with another quota (0: not given, 1: its lineage follows,
--   2: unknown); the quota's tag in three digits; the minimum lifetime of the state in seconds; the cost; and four
--   fields of the quota. A calendar window has a fifth field. A permit's name replaces the fourth.
--   To lend, the seconds are replaced by the maximum units to lend beyond the cost. After all charges follow, for
--   each: the units due in any case, the share due of what remains, and the demand since the node's last report.
--   After all charges of a refund follows, for each, the instant of the charge; or, below zero, -1 minus its maximum
--   age in microseconds.
--   A lineage is a count, a tag, and for each earlier quota of the state: its kind, how it relates to the next one
--   (1: its windows are the same, 2: it is equal), five fields, when the next became active, and when the next one's
--   first window ended.
-- The reply to a request begins with a status byte:
--   5 and 7: the time, and each counter before the charge: its missing credits, or the end of the window and the
--   count, or two bytes of length and the sub-windows.
--   0 and 6: the time and, for each charge, the verdict, its time, the remaining units, the time until the next unit,
--   and the time until the counter is reset. For an operation other than a charge, 0 alone means success and 8 that
--   the whole refund was dropped.
--   7 and 6 are used to lend. After each charge they hold the units lent and the fleet's demand per second, 0 if it is
--   unknown.
--   Any other status says why nothing was charged.
--
-- A state is a string that begins with the tag of its quota. A demand key holds what nodes report: since when, a
-- second, the units reported in it, and in the one before. All writes come last, so a script that fails has changed
-- nothing.

local CHARGE, REFUND, RESET, DEBIT, LEND, RENEW = 1, 2, 3, 4, 5, 6
local RESERVOIR, EPOCH, FIRST_HIT, CALENDAR, SLIDING, LOG, PERMITS = 1, 2, 3, 4, 5, 6, 7
local ALLOW, WAIT, DENY, NEVER = 0, 1, 2, 3
local UNKNOWN, BOUNDS, MALFORMED, REFUSED, GONE = -1, -2, -3, -4, -5
local EXACT = 9007199254740991
local PERIOD_MAX, PRECISION_MAX, LOG_MAX, PERMITS_MAX = 31622400000000, 60, 65536, 1000000
local LAST = 4503599627370495 - 94867200000000
-- How long keys outlive their states: long enough that a returning client does not recreate its key each time, and that
-- whole seconds suffice. Longer while the time is injected, because Redis expires keys by its own clock.
local SPARE_SECONDS, INJECTED_SECONDS = 2, 3600
-- Shares are fractions of PARTS. A demand key lives a little longer than its reports are used.
local PARTS, HORIZON, YOUNG, COUNT_MAX, DUE_MAX = 65536, 1000000, 250000, 4294967295, 1099511627776
local WANT_BYTES, DEMAND_SECONDS = 24, 3

local call = redis.call
local pack, unpack_at = struct.pack, struct.unpack
local sub, byte, format = string.sub, string.byte, string.format
local tonumber = tonumber

local sign, repeats, lending = byte(ARGV[1]), false, false
local time_argument = ARGV[1]
if sign and sign >= 42 and sign <= 44 then
  repeats, lending, time_argument = sign == 43 or sign == 44, sign == 42 or sign == 44, sub(time_argument, 2)
end
local injected = time_argument ~= ''
local now
if injected then
  now = tonumber(time_argument)
  if not (now and now >= 0 and now <= EXACT and now % 1 == 0) then
    return redis.error_reply('TOLLGATE the time must be whole microseconds')
  end
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
if now > LAST then now = LAST end
local keys, requests = #KEYS, #ARGV - 1
local held = keys > 0 and call('MGET', unpack(KEYS)) or {}
-- A repeated key has its state at its first index.
local places
if repeats then
  places = {}
  local place_of = {}
  for index = 1, keys do
    local key = KEYS[index]
    local place = place_of[key] or index
    place_of[key], places[index] = place, place
  end
end

-- Loans: what is due of what remains, and the fleet's demand. The counterpart of the Rust demand functions.
local want_at, due_of, weigh
if lending then
  -- Reads the want after a request's charges; nil if it is out of range.
  want_at = function(body, at)
    local due, part, report = unpack_at('<ddd', body, at)
    if due >= 0 and due <= DUE_MAX and due % 1 == 0 and part >= 0 and part <= PARTS and part % 1 == 0
      and report >= 0 and report <= COUNT_MAX and report % 1 == 0
    then
      return due, part, report
    end
  end

  -- The units to lend of those available.
  due_of = function(remaining, units, due, part)
    local few = remaining % PARTS
    local all = few * part + due
    all = (remaining - few) / PARTS * part + (all - all % PARTS) / PARTS
    if all > remaining then all = remaining end
    return all < units and all or units
  end

  -- The demand with one more report, and its rate per second; nil if nothing is reported, or if there is none yet and
  -- the counter is not tight.
  weigh = function(state, report, is_tight)
    if report == 0 then return nil, 0 end
    local second, since, at, current, previous = (now - now % HORIZON) / HORIZON, nil, nil, nil, nil
    if state and #state == 32 then
      since, at, current, previous = unpack_at('<dddd', state)
      if not (since >= 0 and since <= EXACT and since % 1 == 0 and at >= 0 and at <= EXACT and at % 1 == 0 and current >= 0
        and current <= COUNT_MAX and current % 1 == 0 and previous >= 0 and previous <= COUNT_MAX and previous % 1 == 0)
      then
        at = nil
      end
    end
    if at and second < at + 2 then
      if second > at then
        at, current, previous = second, report, current
      else
        current = current + report
        if current > COUNT_MAX then current = COUNT_MAX end
      end
    elseif is_tight then
      since, at, current, previous = now, second, 0, 0
    else
      return nil, 0
    end
    local age, demand = now - since, 0
    if age >= HORIZON then
      local passed = now - at * HORIZON
      if passed < 0 then passed = 0 end
      if passed > HORIZON then passed = HORIZON end
      -- The previous second may not have been counted from its start.
      local counted = at * HORIZON - since
      if counted < 1 then counted = 1 end
      if counted > HORIZON then counted = HORIZON end
      demand = previous * (HORIZON - passed)
      demand = (demand - demand % counted) / counted + current
    elseif age >= YOUNG then
      demand = (current + previous) * HORIZON
      demand = (demand - demand % age) / age
    end
    return pack('<dddd', since, at, current, previous), demand
  end
end
