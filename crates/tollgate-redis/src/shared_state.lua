-- The exchange between the nodes of a fleet, in one call: merges the caller's items, notes its resets and its heartbeat,
-- and returns what the caller does not know yet.
-- KEYS: items (hash), resets (sorted set), nodes (hash).
-- ARGV: node, heartbeat ('' for none), known version, known mark, 1 to list the nodes, number of items, then for each
-- item its id, instant, end and text, then the resets.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
local items, resets, nodes = KEYS[1], KEYS[2], KEYS[3]
local ITEMS_MAX, RESETS_MAX = 4096, 1000
local ITEMS_LIFE_MS, GRACE = 32 * 86400000, 600000000
local RESETS_LIFE = 60000000
-- A node that leaves in order is removed at once. One that stopped without a word stays listed, so that it is missed.
local NODES_LIFE, LOST_AFTER, LOST_MAX = 3600000000, 60000000, 100

-- Removes items that ended. Clocks of nodes may differ, so some time after their end.
local function sweep()
  local all = redis.call('HGETALL', items)
  for i = 1, #all, 2 do
    local ends = string.match(all[i + 1], '^%d+ (%d+) ')
    if ends and tonumber(ends) + GRACE < now then redis.call('HDEL', items, all[i]) end
  end
end

local taken, changed, swept, at = {}, false, false, 7
for i = 1, tonumber(ARGV[6]) do
  local id, stamp = ARGV[at], tonumber(ARGV[at + 1])
  local held = redis.call('HGET', items, id)
  local last = held and tonumber(string.match(held, '^%d+')) or 0
  -- Without an instant it is written now, after everything before it. With one, it was written while the store was
  -- away, and loses against anything later.
  if stamp == 0 then stamp = math.max(now, last + 1) else stamp = math.min(stamp, now) end
  local full = not held and redis.call('HLEN', items) >= ITEMS_MAX
  if full and not swept then
    sweep()
    swept, full = true, redis.call('HLEN', items) >= ITEMS_MAX
  end
  if full then
    taken[i] = 'full'
  elseif stamp > last then
    redis.call('HSET', items, id, text(stamp) .. ' ' .. ARGV[at + 2] .. ' ' .. ARGV[at + 3])
    taken[i], changed = text(stamp), true
  else
    taken[i] = 'older'
  end
  at = at + 4
end
if changed then
  redis.call('HSET', items, 'version', text(now) .. '-' .. ARGV[1])
end

local mark = redis.call('HGET', items, 'mark') or '0'
local unheard = 0
if at <= #ARGV then
  redis.call('ZREMRANGEBYSCORE', resets, '-inf', now - RESETS_LIFE)
  -- The mark only grows, even if the clock is set back.
  mark = text(math.max(now, tonumber(mark) + 1))
  for i = at, #ARGV do
    if redis.call('ZCARD', resets) >= RESETS_MAX then
      unheard = unheard + 1
    else
      redis.call('ZADD', resets, mark, mark .. '-' .. i .. ' ' .. ARGV[i])
    end
  end
  redis.call('HSET', items, 'mark', mark)
  redis.call('PEXPIRE', resets, RESETS_LIFE / 1000)
end
if changed or at <= #ARGV then redis.call('PEXPIRE', items, ITEMS_LIFE_MS) end

if ARGV[2] ~= '' then
  redis.call('HSET', nodes, ARGV[1], text(now) .. ' ' .. ARGV[2])
  redis.call('PEXPIRE', nodes, NODES_LIFE / 1000)
end
local listed, lost = {}, {}
if ARGV[5] == '1' then
  local all = redis.call('HGETALL', nodes)
  for i = 1, #all, 2 do
    local seen = tonumber(string.match(all[i + 1], '^%d+')) or 0
    if seen + NODES_LIFE < now then
      redis.call('HDEL', nodes, all[i])
    elseif seen + LOST_AFTER < now then
      lost[#lost + 1] = { id = all[i], seen = seen, node = all[i + 1] }
    else
      listed[#listed + 1], listed[#listed + 2] = all[i], all[i + 1]
    end
  end
  table.sort(lost, function(one, other) return one.seen > other.seen end)
  for place, each in ipairs(lost) do
    if place > LOST_MAX then
      redis.call('HDEL', nodes, each.id)
    else
      listed[#listed + 1], listed[#listed + 2] = each.id, each.node
    end
  end
end

local version = redis.call('HGET', items, 'version') or ''
local news, heard = {}, {}
if version ~= ARGV[3] then news = redis.call('HGETALL', items) end
if ARGV[4] ~= '' and mark ~= ARGV[4] then
  heard = redis.call('ZRANGEBYSCORE', resets, '(' .. ARGV[4], '+inf')
end
return { text(now), version, mark, taken, unheard, news, heard, listed }
