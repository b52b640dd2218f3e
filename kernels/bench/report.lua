-- The table and the file that a benchmark run leaves.
--
-- A result is what row.lua returns: medians in seconds, ratio = peer time / our time with
-- quartiles, shares of the adjacent calibration, memory in bytes.

local M = {}

local function seconds(t)
   if not t or t ~= t then return '-' end
   if t >= 1 then return ('%.2f s'):format(t) end
   if t >= 1e-3 then return ('%.2f ms'):format(1e3 * t) end
   if t >= 1e-6 then return ('%.2f us'):format(1e6 * t) end
   return ('%.0f ns'):format(1e9 * t)
end

local function side_text(result, t)
   local row = result.row
   if row.tokens and t then return ('%.0f tok/s'):format(row.tokens / t) end
   return seconds(t and t / (row.per or 1))
end

local function percent(x)
   if not x or x ~= x then return '-' end
   return ('%.0f%%'):format(100 * x)
end

local function ratio_text(r)
   if not r.ratio then return '-' end
   if not r.q1 then return ('%.2fx'):format(r.ratio) end
   return ('%.2fx [%.2f %.2f]'):format(r.ratio, r.q1, r.q3)
end

local function mib(bytes) return ('%.0f'):format(bytes / 2^20) end

-- What memory says of a row, or ''. The peer's figure is the smaller of tuned and stock.
local function memory_text(r)
   local field = r.row.memory == 'extra' and 'extra' or 'above'
   local ours, peer = r.ours_memory, r.peer_memory
   if r.row.case ~= 'start' and not r.row.memory or not ours then return '' end
   if not peer then return mib(ours[field]) .. ' MiB' end
   local low = peer[field]
   if r.stock then low = math.min(low, r.stock[field]) end
   r.memory_ratio = ours[field] / low
   return ('%s / %s MiB %.2fx'):format(mib(ours[field]), mib(low), r.memory_ratio)
end

local function must_text(r)
   local row = r.row
   if row.at_most then
      local ok = r.ours / (row.per or 1) <= row.at_most
         and (not row.at_most_bytes or r.ours_memory.above <= row.at_most_bytes)
      return (ok and 'met' or 'MISSED') .. ' (' .. seconds(row.at_most) .. ')'
   end
   if not row.must or not r.ratio then return '' end
   return (r.ratio >= row.must and 'met' or 'MISSED') .. (' (%.1fx)'):format(row.must)
end

local widths = { 26, 2, 13, 13, 19, 6, 6, 7, 26, 15 }
local function put(cells)
   local words = {}
   for i, w in ipairs(widths) do
      local text = tostring(cells[i] or '')
      local left = i == 1 or i >= 9
      words[i] = left and ('%-' .. w .. 's'):format(text) or ('%' .. w .. 's'):format(text)
   end
   io.stdout:write((table.concat(words, ' '):gsub('%s+$', '')), '\n')
   io.stdout:flush()
end

local function quiet_text(r) return r.quiet and ('%d/%d'):format(r.quiet, r.rounds) or '' end

-- The columns behind name and threads: of tide against the peer, and of --scaling. of T: the gain
-- over the number of threads; limit: the same of the calibration.
local columns = {
   peer = {
      heads = { 'ours', 'peer', 'peer/ours [quartiles]', 'limit', 'peer', 'quiet',
         'memory ours/peer', 'must' },
      cells = function(r)
         return percent(r.share), percent(r.peer_share), quiet_text(r), memory_text(r), must_text(r)
      end,
   },
   scaling = {
      heads = { 'T threads', 'one thread', 'gain [quartiles]', 'of T', 'limit', 'quiet' },
      cells = function(r)
         return percent(r.ratio / r.threads), percent(r.machine / r.threads), quiet_text(r)
      end,
   },
}

-- One line of the table. kind: of columns.
function M.show(r, kind)
   if r.problem then
      put { r.name, r.threads, 'WRONG: ' .. r.problem }
      return
   end
   local name = r.name .. (r.variant and (' (%s)'):format(r.variant) or '')
   put { name, r.threads, side_text(r, r.ours), side_text(r, r.peer), ratio_text(r),
      columns[kind].cells(r) }
end

-- The heading, after a line on what ran.
function M.heading(text, kind)
   io.stdout:write(text, '\n')
   put { 'name', 'T', unpack(columns[kind].heads) }
end

-- ---- json ---------------------------------------------------------------------------------------

local function encode(v)
   if type(v) == 'number' then
      return v == v and math.abs(v) ~= math.huge and ('%.9g'):format(v) or 'null'
   end
   if type(v) == 'string' then
      return '"' .. v:gsub('[%c"\\]', function(c) return ('\\u%04x'):format(c:byte()) end) .. '"'
   end
   if type(v) ~= 'table' then return tostring(v) end
   local words = {}
   if #v > 0 then
      for i, x in ipairs(v) do words[i] = encode(x) end
      return '[' .. table.concat(words, ',') .. ']'
   end
   local keys = {}
   for k in pairs(v) do keys[#keys + 1] = k end
   table.sort(keys)
   for i, k in ipairs(keys) do words[i] = encode(k) .. ':' .. encode(v[k]) end
   return '{' .. table.concat(words, ',') .. '}'
end

function M.write(path, results)
   local rows = {}
   for i, r in ipairs(results) do
      local copy = {}
      for k, v in pairs(r) do
         if k ~= 'row' then copy[k] = v end
      end
      copy.kind, copy.tokens, copy.work = r.row.kind, r.row.tokens, r.row.work
      rows[i] = encode(copy)
   end
   local f = assert(io.open(path, 'w'))
   f:write('[\n', table.concat(rows, ',\n'), '\n]\n')
   f:close()
end

return M
