-- Compares what must be the same on all ranks, and raises one error on all where it differs.
--
-- Each rank describes what it holds in a text, the ranks exchange the texts, and every rank raises
-- the same error, which names the ranks that differ, before anything is changed. Where one call
-- makes others (a plan that cuts and shards a model), the others do not compare again what the
-- first has compared, so the ranks meet once. The texts are made elsewhere: parallel.fingerprint.

local by_key = require 'tide.util.by_key'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'

local agree = {}

-- ---- which ranks differ ----------------------------------------------------------------------

local most_named = 16

-- Returns ranks as text: "rank 3" for one, "ranks 0, 2" for several.
function agree.ranks_text(list)
   local more = #list - most_named
   return (#list == 1 and 'rank ' or 'ranks ')
      .. table.concat(list, ', ', 1, math.min(#list, most_named))
      .. (more > 0 and (' and %d more'):format(more) or '')
end

-- Returns the groups of ranks with equal texts of item i, in the order of their first ranks, among
-- the first ranks that should agree and do not; nil if all agree.
local function parted(all, i)
   local among, ranks_of = by_key()
   for r, row in ipairs(all) do table.insert(ranks_of(row[i] and row[i].among or ''), r) end
   for _, ranks in ipairs(among) do
      local groups, group_of = by_key(function(text) return { text = text } end)
      for _, r in ipairs(ranks) do
         local text = all[r][i] and all[r][i].text or ''
         table.insert(group_of(text, text), r - 1)
      end
      if #groups > 1 then return groups end
   end
end

-- Returns the texts of groups, that of the fewest ranks first.
local function shown(groups)
   local list = { unpack(groups) }
   table.sort(list, function(a, b)
      if #a ~= #b then return #a < #b end
      return a[1] > b[1]
   end)
   for i, g in ipairs(list) do list[i] = ('%s: %s'):format(agree.ranks_text(g), g.text) end
   return table.concat(list, '; ')
end

-- ---- texts of many lines ---------------------------------------------------------------------

local most_lines = 3

-- Returns the lines 'name = value' by name, and the names in order.
local function by_name(text)
   local values, names = {}, {}
   for line in text:gmatch '[^\n]+' do
      local name, value = line:match '^(.-) = (.*)$'
      names[#names + 1] = name or line
      values[names[#names]] = value or ''
   end
   return values, names
end

-- Returns the names whose values differ in two texts, in the order of the first, then of the
-- second.
local function differing(a, b)
   local first, names = by_name(a)
   local second, more = by_name(b)
   local list = {}
   for _, name in ipairs(names) do
      if first[name] ~= second[name] then list[#list + 1] = name end
   end
   for _, name in ipairs(more) do
      if first[name] == nil then list[#list + 1] = name end
   end
   return list, first, second
end

-- Returns a value of a line, cut where it is long.
local function short(value)
   if value == nil then return 'absent' end
   return #value > 60 and value:sub(1, 57) .. '...' or value
end

-- Returns the first lines in which the texts of two groups of ranks differ. groups: of parted.
local function lines_shown(groups)
   local a, b = groups[1], groups[2]
   local names, first, second = differing(a.text, b.text)
   local list = {}
   for i = 1, math.min(#names, most_lines) do
      local name = names[i]
      list[i] = ('%s (%s: %s; %s: %s)'):format(name, agree.ranks_text(b), short(second[name]),
         agree.ranks_text(a), short(first[name]))
   end
   local more = #names - most_lines
   return table.concat(list, ', ') .. (more > 0 and (' and %d more'):format(more) or '')
end

-- Returns what the message says of the texts of an item.
local function told(item, groups)
   if item[3] == 'lines' then return '; ' .. lines_shown(groups) end
   return item[3] == 'shown' and '; ' .. shown(groups) or ''
end

local function refuse(op, code, item, groups)
   local others = {}
   for g = 2, #groups do
      for _, r in ipairs(groups[g]) do others[#others + 1] = r end
   end
   table.sort(others)
   err.raise(code, op, '%s %s other %s than rank %d: these ranks have different %s%s; %s',
      agree.ranks_text(others), #others == 1 and 'has' or 'have', item[1], groups[1][1], item[1],
      told(item, groups), item.hint or 'every rank must give the same')
end

-- ---- comparing -------------------------------------------------------------------------------

local function text_of(item)
   if type(item[2]) == 'function' then return item[2]() end
   return item[2]
end

-- Returns the items of a list in which some may be lists of items, in order.
local function flat(items, into)
   for _, item in ipairs(items) do
      if type(item[1]) == 'table' then flat(item, into) else into[#into + 1] = item end
   end
   return into
end

-- Returns whether ranks of comm have compared a model already: these ranks, or a larger group from
-- which they were split off.
local function is_settled(comm, model)
   local over = rawget(model, '_settled')
   return over ~= nil and (over == comm or type(comm.id) == 'string'
      and comm.id:sub(1, #over.id + 1) == over.id .. '/')
end

-- Raises on every rank of comm, with one text, if ranks differ in an item. items: a list, compared
-- in this order, of { what (a plural), text (or a function that gives it), how } and of lists of
-- them (parallel.fingerprint.model). how: 'shown' (the message quotes the texts; else only hashes
-- are sent), 'lines' (the text is many lines 'name = value'; the message quotes the first that
-- differ). Further fields: among (only ranks with an equal value are compared; default: all), hint
-- (what the user should do). Raises E_COMM if ranks are in other calls than op.
-- model: the one that the items describe, or nil. Collective, except on one rank, on simulated
-- ranks (the transport 'sim') and for a settled model.
function agree.check(comm, op, code, items, model)
   err.arg_if(type(comm) ~= 'table' or type(comm.size) ~= 'number', op, 'comm', 'a communicator',
      comm)
   if comm.size == 1 or comm.transport == 'sim' or not comm.all_gather_object then return end
   if model and is_settled(comm, model) then return end
   -- calls before all else: texts of other calls are about other things
   local asked, mine = flat(items, { { 'calls', op, 'shown',
      hint = 'all ranks must make the same calls in the same order' } }), {}
   for i, item in ipairs(asked) do
      local text = text_of(item)
      mine[i] = { text = item[3] == 'shown' and text or require('tide.ffi.io').xxh64(text),
         among = item.among }
   end
   local all = comm:all_gather_object(mine)
   for i, item in ipairs(asked) do
      local groups = parted(all, i)
      if groups then
         if item[3] == 'lines' then         -- the texts themselves, now that they differ
            local texts = comm:all_gather_object(text_of(item))
            for r, row in ipairs(all) do row[i].text = texts[r] end
            groups = parted(all, i)
         end
         refuse(op, i == 1 and 'E_COMM' or code, item, groups)
      end
   end
end

local most_remembered = 256

-- Compares one item as check does, but only at the first call in which op passes this text on comm:
-- for calls that repeat. A rank that passes a new text while others repeat an old one makes another
-- call than they do, which the communicator refuses.
function agree.once(comm, op, what, text)
   local seen = rawget(comm, '_agreed')
   if not seen or seen.count >= most_remembered then
      seen = { count = 0 }
      rawset(comm, '_agreed', seen)
   end
   local key = op .. '\n' .. text
   if seen[key] then return end
   agree.check(comm, op, 'E_COMM', { { what, text, 'shown' } })
   seen[key], seen.count = true, seen.count + 1
end

-- Returns the result of fn(...), in which nothing about model is compared again on comm or a part
-- of it: the caller has just compared it, and only the caller changes the model in fn.
function agree.settled(comm, model, fn, ...)
   model._settled = comm
   return finally(function() model._settled = nil end, fn, ...)
end

return agree
