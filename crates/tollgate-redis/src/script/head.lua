-- Tollgate's counters in Redis: the twin of the Rust functions, answer for answer. Read crates/tollgate/src/algorithm first.
--
-- KEYS    the counters of all requests, request after request.
-- ARGV[1] a plus sign if a key may be named more than once; then the time in microseconds, for tests. In service Redis tells it.
-- ARGV[2] and on: one request each, or in one byte the number of an earlier one that it is like. A request is a byte for its
--   operation, one for the number of its charges, and its charges:
--   kind, whether in shadow, where a state of another quota comes from (0: ask, 1: its lineage follows, 2: nobody knows), the tag
--   of the quota in three digits, the seconds that the state must at least be kept, the cost, and four numbers of the quota.
--   Where units are lent, in place of the seconds stand those that may be taken beyond the cost, and, in the highest of its four
--   bytes, among how many nodes what is there is divided.
--   A calendar window has a fifth. A permit's name takes the place of the fourth number.
--   A lineage is a count, a tag, and for each quota that the state was counted under its kind, how like it its successor is
--   (1: its windows are the same, 2: it is the same), five numbers, when it was succeeded, and when its successor's first window ended.
-- Answers each request, in one of three ways: of a charge to one bucket by a number, the credits that it lacked before; by a byte 5,
--   the time, and what was found of each counter: the credits, or the end of the window and its count, or two bytes of length and the
--   sub-windows; or by a byte 0 and, for each charge, the verdict, its time, what remains, the time until one unit more, and until
--   nothing is used. Where units are lent, by a byte 7 or 6 in place of these, and the units that were lent behind each charge's
--   part; 6 is followed by the time. Another byte says why nothing was charged.
--
-- A state is a string that begins with the tag of the quota that it was counted under. All writes come last: a script that fails
-- has changed nothing.

local CHARGE, REFUND, RESET, DEBIT, LEND = 1, 2, 3, 4, 5
local RESERVOIR, EPOCH, FIRST_HIT, CALENDAR, SLIDING, LOG, PERMITS = 1, 2, 3, 4, 5, 6, 7
local ALLOW, WAIT, DENY, NEVER = 0, 1, 2, 3
local UNKNOWN, BOUNDS, MALFORMED, REFUSED, GONE = -1, -2, -3, -4, -5
local EXACT = 9007199254740991
local PERIOD_MAX, PRECISION_MAX, LOG_MAX, PERMITS_MAX = 31622400000000, 60, 65536, 1000000
local LAST = 4503599627370495 - 94867200000000
-- How long keys outlive their states: so long that one who comes again and again is not made and dropped each time, and that whole
-- seconds are enough to tell. And while the time is injected, since Redis expires them by its own clock.
local SPARE_SECONDS, INJECTED_SECONDS = 2, 3600
local EXTRA = 16777216

local call = redis.call
local pack, unpack_at = struct.pack, struct.unpack
local sub, byte, format = string.sub, string.byte, string.format
local tonumber = tonumber

local repeats = byte(ARGV[1]) == 43
local told = repeats and sub(ARGV[1], 2) or ARGV[1]
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
