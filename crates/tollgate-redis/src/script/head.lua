-- Tollgate's counters in Redis: the twin of the Rust functions, answer for answer. Read crates/tollgate/src/algorithm first.
--
-- KEYS    the counters of all requests, request after request; behind those of one that lends, for each the key of its crowd.
-- ARGV[1] a plus sign if a key may be named more than once, a star if units are lent, a comma for both; then the time in microseconds,
--   for tests. In service Redis tells it.
-- ARGV[2] and on: one request each, or in one byte the number of an earlier one that it is like. A request is a byte for its
--   operation, one for the number of its charges, and its charges:
--   kind, whether in shadow, where a state of another quota comes from (0: ask, 1: its lineage follows, 2: nobody knows), the tag
--   of the quota in three digits, the seconds that the state must at least be kept, the cost, and four numbers of the quota.
--   Where units are lent, in place of the seconds stand those that may be taken beyond the cost; and behind all charges, for each
--   what is due whatever is there, the part that is due of what is there, and the units that the node was asked for since it last told.
--   A calendar window has a fifth. A permit's name takes the place of the fourth number.
--   Behind all charges of a refund stands, for each, the instant by which it was counted; or, if nobody knows it, -1 and below that
--   how many microseconds ago it was at most.
--   A lineage is a count, a tag, and for each quota that the state was counted under its kind, how like it its successor is
--   (1: its windows are the same, 2: it is the same), five numbers, when it was succeeded, and when its successor's first window ended.
-- Answers each request, in one of two ways: by a byte 5, the time, and what was found of each counter: the credits that it lacked, or
--   the end of the window and its count, or two bytes of length and the sub-windows; or by a byte 0, the time and, for each charge, the
--   verdict, its time, what remains, the time until one unit more, and until nothing is used. What is no charge is answered by a byte 0,
--   or by a byte 8 if all that was to be given back was dropped. Where units are lent, by a byte 7 or 6 in place of these, and behind each charge's part the units that were lent,
--   and what all nodes are asked for in a second, 0 if nobody knows; 6 is followed by the time. Another byte says why nothing was
--   charged.
--
-- A state is a string that begins with the tag of the quota that it was counted under. A crowd is what nodes report: since when, a
-- second, what was told in it, and in the one before. All writes come last: a script that fails has changed nothing.

local CHARGE, REFUND, RESET, DEBIT, LEND, RENEW = 1, 2, 3, 4, 5, 6
local RESERVOIR, EPOCH, FIRST_HIT, CALENDAR, SLIDING, LOG, PERMITS = 1, 2, 3, 4, 5, 6, 7
local ALLOW, WAIT, DENY, NEVER = 0, 1, 2, 3
local UNKNOWN, BOUNDS, MALFORMED, REFUSED, GONE = -1, -2, -3, -4, -5
local EXACT = 9007199254740991
local PERIOD_MAX, PRECISION_MAX, LOG_MAX, PERMITS_MAX = 31622400000000, 60, 65536, 1000000
local LAST = 4503599627370495 - 94867200000000
-- How long keys outlive their states: so long that one who comes again and again is not made and dropped each time, and that whole
-- seconds are enough to tell. And while the time is injected, since Redis expires them by its own clock.
local SPARE_SECONDS, INJECTED_SECONDS = 2, 3600
-- Shares are told in parts. A crowd is kept for as long as it says something, and a little longer.
local PARTS, HORIZON, YOUNG, COUNT_MAX, DUE_MAX = 65536, 1000000, 250000, 4294967295, 1099511627776
local WANT_BYTES, CROWD_SECONDS = 24, 3

local call = redis.call
local pack, unpack_at = struct.pack, struct.unpack
local sub, byte, format = string.sub, string.byte, string.format
local tonumber = tonumber

local sign, repeats, lending = byte(ARGV[1]), false, false
local told = ARGV[1]
if sign and sign >= 42 and sign <= 44 then
  repeats, lending, told = sign == 43 or sign == 44, sign == 42 or sign == 44, sub(told, 2)
end
local injected = told ~= ''
local now
if injected then
  now = tonumber(told)
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
-- A key that is named more than once has its state at its first place.
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

-- Where units are lent: what is due of what is there, and what all nodes are asked for. The twin of lease/crowd.rs.
local want_at, due_of, weigh
if lending then
  -- What is told of a want behind the charges of a request; nothing if it is out of range.
  want_at = function(body, at)
    local due, part, report = unpack_at('<ddd', body, at)
    if due >= 0 and due <= DUE_MAX and due % 1 == 0 and part >= 0 and part <= PARTS and part % 1 == 0
      and report >= 0 and report <= COUNT_MAX and report % 1 == 0
    then
      return due, part, report
    end
  end

  -- The units to take where so many are there.
  due_of = function(remaining, units, due, part)
    local few = remaining % PARTS
    local all = few * part + due
    all = (remaining - few) / PARTS * part + (all - all % PARTS) / PARTS
    if all > remaining then all = remaining end
    return all < units and all or units
  end

  -- A crowd with a report more, and what it comes to in a second; no crowd, if nothing is reported, or there is none and the counter is
  -- not tight.
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
      -- The second before may not have been counted from its beginning.
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
