-- Styles: how one module is cut over the tensor-parallel axis.
--
-- A style is an immutable record of a cut of the weight and of the layouts of input and output.
-- Equal records are one object, so styles compare with == and can be shared.
--
--    name                weight (Linear)    input   output
--    colwise             rows (dim 1)       R       S(-1)
--    rowwise             columns (dim 2)    S(-1)   R
--    colwise_rep         rows               R       R
--    rowwise_rep         columns            R       R       (embedding: vocabulary rows)
--    sequence_parallel   whole              S(1)    S(1)
--    gather_input        whole              S(1)    R       (a module on the whole sequence)
--
-- R: alike on every rank; S(-1): cut along the last dim; S(1): along the sequence, the dim after
-- the batch. The names of layouts are those of the literature, in which dims count from 0.
-- The fields shard ('rows', 'columns' or nil), input and output can be read; blocks is the number
-- of projections fused in the rows of a weight. with{} gives the style with some fields changed.

local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local near = require 'tide.util.near'

local tp_style = {}

local fields = { 'name', 'shard', 'input', 'output', 'blocks' }
local read_changes = signature.options { "input: 'R' | 'S(1)' | 'S(-1)'?",
   "output: 'R' | 'S(1)' | 'S(-1)'?", 'blocks: integer? >= 1' }
local data = setmetatable({}, { __mode = 'k' })
local made = {}
local methods = {}

local Style = { class_name = 'ParallelStyle' }
function Style.__index(s, key) return methods[key] or data[s][key] end
function Style.__newindex(s, key)
   err.raise('E_STATE', 'parallel.style', "the style '%s' cannot be changed ('%s'); make another "
      .. 'one with style:with{}', data[s].name, tostring(key))
end
function Style.__tostring(s)
   local d = data[s]
   return ('%s (%s -> %s)'):format(d.name, d.input, d.output)
end
Style.__metatable = 'ParallelStyle'

local function make(record)
   local key = {}
   for i, f in ipairs(fields) do key[i] = tostring(record[f]) end
   key = table.concat(key, '|')
   if not made[key] then
      made[key] = setmetatable({}, Style)
      data[made[key]] = record
   end
   return made[key]
end

-- Returns the style with these fields: input, output, blocks.
function methods.with(s, changes)
   return make(copy(read_changes('parallel.style.with', changes), copy(data[s])))
end

local names, styles = {}, {}
for i, row in ipairs {
   { 'colwise', 'rows', 'R', 'S(-1)' }, { 'rowwise', 'columns', 'S(-1)', 'R' },
   { 'colwise_rep', 'rows', 'R', 'R' }, { 'rowwise_rep', 'columns', 'R', 'R' },
   { 'sequence_parallel', nil, 'S(1)', 'S(1)' }, { 'gather_input', nil, 'S(1)', 'R' },
} do
   local name, shard, input, output = unpack(row, 1, 4)
   names[i] = name
   styles[name] = make { name = name, shard = shard, input = input, output = output, blocks = 1 }
end

-- Returns whether v is a style.
function tp_style.is(v) return type(v) == 'table' and data[v] ~= nil end

-- Returns the style of a name.
function tp_style.translate_to_parallel_style(name)
   local op = 'parallel.translate_to_parallel_style'
   if type(name) ~= 'string' then err.arg(op, 'style', 'a string', name) end
   if not styles[name] then
      err.raise('E_ARG', op, "Unknown parallel style '%s'%s", name, near.hint(name, names))
   end
   return styles[name]
end

-- Returns the style that v means: a style, its name, or { name, input =, output =, blocks = }; nil
-- for other values.
function tp_style.read(v)
   if tp_style.is(v) then return v end
   if type(v) == 'string' then return tp_style.translate_to_parallel_style(v) end
   if type(v) ~= 'table' or type(v[1]) ~= 'string' then return nil end
   local changes = copy(v)
   changes[1] = nil
   return tp_style.translate_to_parallel_style(v[1]):with(changes)
end

tp_style.get = tp_style.translate_to_parallel_style

return tp_style
