-- What domains of random cases share: contents of tensors as a function of a seed, distances, plain
-- data as Lua text, and functions on ranks.

local host = require 'tide.ffi.host'
local choice = require 'spec.deep.fuzz.choice'

local values = {}

-- n numbers, about normal, as a function of the seed. round: 'bf16' keeps 8 bits of each.
function values.normal(seed, n, round)
   local next_, list = choice.stream('values ' .. seed), {}
   for i = 1, n do
      local v = (next_() + next_() + next_() - 1.5) * 2
      if round == 'bf16' and v ~= 0 then
         local _, e = math.frexp(v)
         local unit = 2 ^ (e - 8)
         v = math.floor(v / unit + 0.5) * unit
      end
      list[i] = v
   end
   return list
end

-- All numbers of nested lists, in order.
function values.flat(list, out)
   out = out or {}
   if type(list) ~= 'table' then
      out[#out + 1] = type(list) == 'boolean' and (list and 1 or 0) or list
      return out
   end
   for _, v in ipairs(list) do values.flat(v, out) end
   return out
end

-- The largest difference, relative to the largest wanted number (at least `floor`, default 1e-3);
-- infinite for other counts and for what is not a number.
function values.far(got, want, floor)
   if #got ~= #want then return math.huge end
   local most, diff = floor or 1e-3, 0
   for i = 1, #want do
      local d = math.abs(got[i] - want[i])
      if d ~= d then return math.huge end
      diff, most = math.max(diff, d), math.max(most, math.abs(want[i]))
   end
   return diff / most
end

-- ---- plain data as text ----------------------------------------------------------------------

local function key_text(k)
   if type(k) == 'string' and k:find '^[%a_][%w_]*$' then return k .. ' = ' end
   return '[' .. (type(k) == 'string' and ('%q'):format(k) or tostring(k)) .. '] = '
end

local function number_text(v)
   if v ~= v then return '0 / 0' end
   if v == math.huge then return 'math.huge' end
   if v == -math.huge then return '-math.huge' end
   local short = ('%.10g'):format(v)
   return tonumber(short) == v and short or ('%.17g'):format(v)
end

-- Short texts, comma by comma, in lines of at most 90 columns.
local function filled(parts, indent)
   local lines, line = {}, ''
   for _, part in ipairs(parts) do
      if #line > 0 and #indent + #line + #part > 87 then
         lines[#lines + 1], line = line, ''
      end
      line = line .. (#line > 0 and ' ' or '') .. part .. ','
   end
   lines[#lines + 1] = line
   return table.concat(lines, '\n' .. indent)
end

-- Plain data as a Lua expression, keys in order.
function values.literal(v, indent)
   indent = indent or ''
   if type(v) == 'string' then return ('%q'):format(v) end
   if type(v) == 'number' then return number_text(v) end
   if type(v) ~= 'table' then return tostring(v) end
   local parts, names, inner = {}, {}, indent .. '   '
   for i = 1, #v do parts[i] = values.literal(v[i], inner) end
   for k in pairs(v) do
      if type(k) ~= 'number' or k < 1 or k > #v or k % 1 ~= 0 then names[#names + 1] = k end
   end
   table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
   for _, k in ipairs(names) do
      parts[#parts + 1] = key_text(k) .. values.literal(v[k], inner)
   end
   local line = #parts == 0 and '{}' or '{ ' .. table.concat(parts, ', ') .. ' }'
   if #line + #indent <= 84 and not line:find '\n' then return line end
   local body = #names == 0 and type(v[1]) ~= 'table' and filled(parts, inner)
      or table.concat(parts, ',\n' .. inner) .. ','
   return '{\n' .. inner .. body .. '\n' .. indent .. '}'
end

-- ---- ranks -----------------------------------------------------------------------------------

-- How much longer than on an idle machine things may take: a factor on every limit of time.
values.slowness = tonumber(os.getenv 'TIDE_SLOWNESS' or nil) or 1

-- Seconds that a collective of a case waits for the other ranks.
values.patience = 20 * values.slowness

local function on_rank(rank, n, patience, module, name, case)
   require('tide').dist.init { timeout = patience }
   return require(module)[name](case, rank, n)
end

-- Codes with which a call may refuse a case.
local refusals = { E_ARG = true, E_UNSUPPORTED = true, E_SHAPE = true }

-- Runs require(module)[name](case, rank, n) on n ranks. Returns the list of what they returned; or
-- nil, the text of the first failure, and whether it is a refusal on all ranks.
function values.ranks(n, module, name, case)
   local rows = host.try(n, { nthread = 1 }, on_rank, values.patience, module, name, case)
   if rows.first < 0 then
      local list = {}
      for r = 1, n do list[r] = rows[r].values[1] end
      return list
   end
   local refused = true
   for r = 1, n do
      refused = refused and rows[r].status ~= 'OK'
         and (refusals[rows[r].status] or rows[r].status == 'E_PEER') or false
   end
   local first = rows[rows.first + 1]
   return nil, ('rank %d: %s'):format(rows.first, first.message),
      refused and refusals[first.status] or false
end

return values
