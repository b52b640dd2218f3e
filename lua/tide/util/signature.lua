-- Signatures as data: one declaration of the arguments of a function serves their checks, its help,
-- the type annotations and the reference of the guides.
--
--    signature.doors('data.sampler', sampler, {
--       permutation = 'n: integer >= 1; seed: integer >= 0; epoch: integer >= 0',
--       new = { opts = {
--          'seq: integer >= 1 -- tokens of a window',
--          'seed: integer >= 0 = 0 -- decides the order' } },
--    })
--
-- puts a check, a door, in front of sampler.permutation and sampler.new; a function that takes both
-- arguments and options has { 'nin: integer >= 1', opts = { ... } }. A row is
-- "name: type = default -- meaning":
--
--    integer, number, boolean, string, table, function, any, float (a floating dtype), tensor,
--    ranks, comm, sharded, or what signature.kind made
--    integer?                  may be absent; so may what has a default
--    integer[]                 a list of them
--    integer >= 1, integer < 0, number > 0, integer in [2, 4], number in [0, 1)
--                              a bound may be an expression of arguments before it, and of
--                              self: integer in [0, self.size - first]
--    tensor [B, T]             a tensor of as many dims; '..' is any number of them. Dims of one
--                              name are equal in all arguments, and to an argument of that name;
--                              [B or 1, T] takes two sizes
--    tensor [B, T] or [T] of i64, i32       one of several shapes; one of these dtypes
--    dim of x                  a dim of the argument x, from 1 or from its end; arrives as from 1
--    'sum' | 'mean'            one of these words; number >= 0 | function: one of these types
--
-- A row "where condition -- message" relates arguments. The condition is a Lua expression of them
-- (of `self`, too); {expressions} in the message show values, and it may begin with another code,
-- or with 'usage: ' for an error of a command line:
--
--    'where heads % groups == 0 -- heads ({heads}) must be a multiple of groups ({groups})'
--    'where self.file -- E_STATE: {self.path} is closed'
--
-- Declarations are read when they are first needed, because a program calls little of what it
-- loads.
-- A default is a number, true, false, 'a word', or the name of an argument before it. A table of
-- options arrives as a checked copy with its defaults; an unknown name is E_ARG with the nearest.
-- Functions that a door does not name are not checked.

-- Compiled, signature.check crashed half of the runs of four ranks: see bindings/README.md.
jit.off(true, true)

local err = require 'tide.util.err'

local signature = {}

-- ---- kinds -----------------------------------------------------------------------------------

-- By name: what messages call it, its Lua type, read(op, name, v, lo, hi), its annotation.
local kinds = {
   integer = { 'an integer', 'number', err.integer, 'integer' },
   number = { 'a finite number', 'number', err.number, 'number' },
   ['function'] = { 'a function', 'function', err.func, 'function' },
   any = { 'any value', nil, function(_, _, v) return v end, 'any' },
   ['false'] = { 'false', 'boolean', function(op, name, v)
      return v and err.arg(op, name, 'false', v)
   end, 'false' },
}
local dtypes = { 'f32', 'f64', 'bf16', 'f16' }
kinds.float = { 'a floating dtype', 'string', function(op, name, v)
   return err.choice(op, name, v, dtypes)
end, 'string' }
for _, name in ipairs { 'boolean', 'string', 'table' } do
   kinds[name] = { 'a ' .. name, name, function(op, what, v) return err.type(op, what, v, name) end,
      name }
end

-- Makes a kind of table (a module, a communicator): its name in declarations, the text of messages,
-- test(value), and its name in annotations.
function signature.kind(name, text, test, annotation)
   kinds[name] = { text, 'table', function(op, what, v)
      if not test(v) then err.arg(op, what, text, v) end
      return v
   end, annotation or 'table' }
end

-- Makes a kind of value whose reader, read(op, name, v), checks and may convert it.
function signature.reader(name, text, read, annotation)
   kinds[name] = { text, 'table', read, annotation or 'table' }
end

signature.kind('comm', 'a communicator', function(v)
   return type(v) == 'table' and type(v.size) == 'number' and type(v.rank) == 'number'
end, 'tide.Comm')
signature.kind('ranks', 'a mesh, an axis of one or a communicator', function(v)
   return type(v) == 'table' and (v.size ~= nil or v.find ~= nil)
end, 'tide.Comm')
signature.kind('sharded', 'what tide.parallel.fully_shard returned', function(v)
   return type(v) == 'table' and v.is_sharded and true or false
end, 'tide.Sharded')

-- Returns the size of a dim: that of an earlier dim of its name, or an argument of that name.
local function size_of(name, values)
   local n = values['[' .. name] or values[name]
   return type(n) == 'number' and n or nil
end

-- Returns the text of a dim for messages: '2' for a letter whose size is known, 'heads = 2' for a
-- word.
local function dim_text(dim, values)
   return (dim:gsub('%a[%w_]*', function(name)
      local n = size_of(name, values)
      return n and (#name > 1 and name .. ' = ' or '') .. n or nil
   end))
end

local function dim_fits(dim, size, values)
   for name in dim:gmatch '[%w_]+' do
      local want = tonumber(name) or size_of(name, values)
      if name ~= 'or' and (want == nil or want == size) then return true end
   end
end

-- Returns whether t has a shape (a list of dims); notes the sizes of names without an operator.
local function has_shape(t, dims, values)
   local open = dims[#dims] == '..'
   local n = open and #dims - 1 or #dims
   if open and t.ndim < n or not open and t.ndim ~= n then return false end
   for d = 1, n do
      if not dim_fits(dims[d], t:size(d), values) then return false end
   end
   for d = 1, n do
      if dims[d]:find '^%a[%w_]*$' then values['[' .. dims[d]] = t:size(d) end
   end
   return true
end

local function shapes_of(text)
   local list = {}
   for inside in text:gmatch '%[(.-)%]' do
      local dims = {}
      for dim in inside:gmatch '[^,]+' do dims[#dims + 1] = dim:match '^%s*(.-)%s*$' end
      list[#list + 1] = dims
   end
   return list
end

local function tensor_text(shapes, of, values)
   local list = {}
   for i, dims in ipairs(shapes) do
      local texts = {}
      for d, dim in ipairs(dims) do texts[d] = dim_text(dim, values) end
      list[i] = ' [' .. table.concat(texts, ', ') .. ']'
   end
   return 'a tensor' .. table.concat(list, ' or') .. (of and ' of ' .. of or '')
end

-- Returns a tensor of one of the shapes and dtypes that a text '[B, T] or [T] of i64, i32' names.
local function tensor(text)
   local shapes, of = shapes_of(text), text:match '%f[%a]of ([%w, ]+)$'
   return { tensor_text(shapes, of, {}), 'cdata', function(op, name, v, values)
      values = values or {}
      local fits = require 'tide'.is_tensor(v)
         and (not of or (', ' .. of .. ','):find(' ' .. v.dtype .. ','))
      local shaped = #shapes == 0
      for _, dims in ipairs(fits and shapes or {}) do
         shaped = shaped or has_shape(v, dims, values)
      end
      if not (fits and shaped) then err.arg(op, name, tensor_text(shapes, of, values), v) end
      return v
   end, 'tide.Tensor' }
end

-- Returns a dim of an argument before it that a text 'of x' names, as a number from 1.
local function dim(text)
   local of = text:match '^of ([%a_][%w_]*)$' or error('signature: no dim: ' .. text)
   return { 'a dim of ' .. of, 'number', function(op, name, v, values)
      local n = values[of].ndim
      if type(v) ~= 'number' or v % 1 ~= 0 or v == 0 or math.abs(v) > n then
         err.arg(op, name, n == 0 and 'no dim at all (the tensor has none)'
            or ('an integer in [-%d, %d] without 0'):format(n, n), v)
      end
      return v > 0 and v or v + n + 1
   end, 'integer' }
end

-- Kinds that read what follows their name themselves.
local made = { tensor = tensor, dim = dim }

-- ---- types -----------------------------------------------------------------------------------

-- Returns the bounds of a range: low or nil, high or nil, and whether a bound itself is out of it.
local function bounds_of(range)
   local low, high, closing = range:match '^in %[([^,]+),%s*([^%]%)]+)([%]%)])$'
   if low then return low, high, closing == ')' end
   local sign, said = range:match '^([<>]=?) (.+)$'
   if not sign then error('signature: no range: ' .. range) end
   if sign:find '>' then return said, nil, sign == '>' end
   return nil, said, sign == '<'
end

local function expression(text)
   return loadstring('return ' .. text) or error('signature: no expression: ' .. text)
end

-- Returns a function of the arguments before it that gives the number a bound says; nil without a
-- bound.
local function bound(text)
   local number = tonumber(text)
   if number or not text then return function() return number end end
   local value = expression(text)
   return function(values) return setfenv(value, values)() end
end

-- Returns the reader of a kind within a range; values: the arguments before it, which bounds may
-- name.
local function ranged(kind, range)
   local low, high, open = bounds_of(range)
   local least, most = bound(low), bound(high)
   local whole = open and kind[1] == 'an integer' and 1 or 0
   return function(op, name, v, values)
      local lo, hi = least(values), most(values)
      if whole == 1 and hi then hi = hi - 1 elseif whole == 1 then lo = lo + 1 end
      kind[3](op, name, v, lo, hi)
      if open and whole == 0 and v == (hi or lo) then err.arg(op, name, 'a number ' .. range, v) end
      return v
   end
end

local function listed(read)
   return function(op, name, v, values)
      if #err.type(op, name, v, 'table') == 0 and next(v) ~= nil then
         err.arg(op, name, 'a list', v)
      end
      for i, item in ipairs(v) do read(op, ('%s[%d]'):format(name, i), item, values) end
      return v
   end
end

-- Returns one alternative of a type as { text, Lua type, read(op, name, v, values), annotation }.
local function alternative(text)
   local base, list, rest = text:match '^([%w_]+)(%[?%]?)%s*(.-)%s*$'
   local kind = made[base] and made[base](rest) or kinds[base]
   if not kind then error('signature: no kind: ' .. text) end
   local read = kind[3]
   local row = { kind[1], kind[2], made[base] and read or function(op, name, v)
      return read(op, name, v)
   end, kind[4] }
   if rest ~= '' and not made[base] then
      row[1], row[3] = row[1] .. ' ' .. rest, ranged(kind, rest)
   end
   return list == '' and row or { 'a list', 'table', listed(row[3]), row[4] .. '[]' }
end

-- Returns a type of several alternatives, which differ by their Lua types, as one row like that of
-- alternative.
local function union(rows)
   local texts, names, by_type = {}, {}, {}
   for i, row in ipairs(rows) do texts[i], names[i], by_type[row[2]] = row[1], row[4], row end
   local text = table.concat(texts, ' or ')
   return { text, nil, function(op, name, v, values)
      local row = by_type[type(v)]
      if not row then err.arg(op, name, text, v) end
      return row[3](op, name, v, values)
   end, table.concat(names, '|') }
end

local function choice(words, text)
   return { text, 'string', function(op, name, v) return err.choice(op, name, v, words) end, text }
end

local function type_of(text)
   if text:find "^'" then
      local words = {}
      for word in text:gmatch "'([^']*)'" do words[#words + 1] = word end
      return choice(words, text)
   end
   local rows = {}
   for part in text:gmatch '[^|]+' do rows[#rows + 1] = alternative(part:match '^%s*(.-)%s*$') end
   return #rows == 1 and rows[1] or union(rows)
end

-- ---- relations -------------------------------------------------------------------------------

-- What conditions may call.
local library = { math = math, type = type }

-- Returns the last entry of a list.
function library.last(list) return list[#list] end

-- Returns whether a list has each of 0 .. #list - 1 once.
function library.permutes(list)
   local seen = {}
   for _, k in ipairs(list) do
      if seen[k] or k < 0 or k >= #list then return false end
      seen[k] = true
   end
   return true
end

-- The sum of a list.
library.sum = require('tide.util.dims').sum

local function relation_of(text)
   local test, said = text:match '^where%s+(.-)%s+%-%-%s+(.*)$'
   if not test then error('signature: no relation: ' .. text) end
   local code, rest = said:match '^(E_%u+): (.*)$'
   if not code then code, rest = said:match '^(usage): (.*)$' end
   return { code = code or 'E_ARG', said = rest or said, test = expression(test) }
end

local function shown(v) return type(v) == 'string' and v or err.show(v) end

-- Raises unless values have these relations. lead: begins the message, by default with nothing.
local function hold(relations, op, values, lead)
   local env = setmetatable({}, { __index = function(_, k)
      if values[k] == nil then return library[k] end
      return values[k]
   end })
   for _, relation in ipairs(relations) do
      if not setfenv(relation.test, env)() then
         local text = (lead or '') .. relation.said:gsub('{(%S.-)}', function(part)
            return shown(setfenv(expression(part), env)())
         end)
         if relation.code == 'usage' then err.usage(op, '%s', text) end
         err.raise(relation.code, op, '%s', text)
      end
   end
end

-- ---- rows ------------------------------------------------------------------------------------

local constants = { ['true'] = true, ['false'] = false }

-- Returns the row of "name: type = default -- meaning". Its type is read at the first call, when
-- all kinds are made.
local function row_of(text)
   local head, meaning = text:match '^(.-)%s+%-%-%s+(.*)$'
   local name, kind = (head or text):match '^%s*([%w_]+):%s*(.-)%s*$'
   if not name then error('signature: no row: ' .. text) end
   local bare, default = kind:match '^(.-)%s=%s(.+)$'
   local row = { name = name, meaning = meaning, kind = (bare or kind):gsub('%?', '', 1),
      optional = (bare or kind):find '%?' ~= nil, shown = default }
   if not default then return row end
   row.default = tonumber(default) or default:match "^'(.*)'$"
   if row.default == nil then row.default = constants[default] end
   if row.default == nil then row.like = default end
   return row
end

-- Returns the checked value of a row; values: the arguments before it.
local function read(row, op, v, values, name)
   if type(v) == 'nil' then
      if row.optional then return nil end
      if row.shown then
         v = row.default
         if row.like then v = values[row.like] end
         if v == nil then return nil end
      end
   end
   row.type = row.type or type_of(row.kind)
   return row.type[3](op, name or row.name, v, values)
end

local types = {}

-- Returns v, an argument `name` of op, if it is of a type ('integer >= 1', 'float?'), or a default
-- ('integer >= 1 = 1'); raises E_ARG if it is not. known: sizes of dims and bounds that the type
-- names.
function signature.check(op, name, v, text, known)
   local row = types[text] or row_of('value: ' .. text)
   types[text] = row
   return read(row, op, v, known or {}, name)
end

-- Returns what is wrong with data that were read ("field 'steps': expected .., got .."), or nil
-- if they are of a type.
function signature.wrong(v, text)
   return (err.problem(signature.check, 'read', '', v, text))
end

local function add_rows(list, texts)
   for _, text in ipairs(texts) do
      if type(text) == 'table' then
         add_rows(list, text)
      elseif text:find '^%s*where ' then
         list.where[#list.where + 1] = relation_of(text:match '^%s*(.-)%s*$')
      else
         list[#list + 1] = row_of(text)
      end
   end
   return list
end

-- Returns the rows of options, or of arguments parted by ';', and their relations as `where`.
function signature.rows(given)
   local texts = type(given) == 'table' and given or {}
   if type(given) == 'string' then
      for text in given:gmatch '[^;]+' do texts[#texts + 1] = text end
   end
   return add_rows({ where = {} }, texts)
end

-- Makes a kind of table { name = value } whose fields are rows and relations; further fields are
-- free. text: what messages call it.
function signature.record(name, text, given)
   local rows
   local function fields()
      rows = rows or signature.rows(given)
      return rows
   end
   kinds[name] = { text, 'table', function(op, what, v)
      if type(v) ~= 'table' then err.arg(op, what, text, v) end
      local values, path = {}, what == '' and '' or what .. '.'
      for _, row in ipairs(fields()) do
         values[row.name] = read(row, op, v[row.name], values, path .. row.name)
      end
      hold(rows.where, op, values, what == '' and '' or what .. ': ')
      return v
   end, 'table', fields = fields }
end

-- Returns the reader that signature.options describes, and its rows.
local function reader_of(given)
   local rows, names, needed = signature.rows(given), {}, false
   for i, row in ipairs(rows) do
      names[i] = row.name
      needed = needed or not row.optional and not row.shown
   end
   return function(op, opts, before)
      if needed and type(opts) == 'nil' then err.type(op, 'options', opts, 'table') end
      opts = err.options(op, opts, names)
      local values, all = {}, before or {}
      for _, row in ipairs(rows) do
         local v = read(row, op, opts[row.name], all)
         values[row.name], all[row.name] = v, v
      end
      hold(rows.where, op, all)
      return values
   end, rows
end

-- Returns a reader of options, read(op, opts), which gives a checked copy with defaults. given: a
-- list of rows, and of lists of rows that several entry points share. before: what bounds,
-- defaults and relations may name, too. A reader of relations alone holds those of any table:
-- read(op, {}, table).
function signature.options(given)
   local reader
   return function(op, opts, before)
      reader = reader or reader_of(given)
      return reader(op, opts, before)
   end
end

-- ---- doors -----------------------------------------------------------------------------------

local door = require('tide.util.door').with(signature.rows, reader_of, read, hold)

-- Adds checks in front of functions of `owner` (a table or a class), and records them. given: name
-- -> arguments, or { arguments, opts = rows, op = the name that errors carry }. op: the public name
-- of owner. A constructor `init` has that name itself. before(op, ...) may change the arguments
-- after the first before they are checked. Returns owner.
function signature.doors(op, owner, given) return door.put(op, owner, given) end

-- Returns the door of a function { op, args, opts, of = the function behind it }; nil of others.
function signature.of(fn) return door.of(fn) end

-- Returns all doors by their names.
function signature.all() return door.all() end

-- Returns the rows of a record's kind; nil of others.
function signature.fields(name)
   local fields = kinds[name] and kinds[name].fields
   return fields and fields()
end

-- Returns the text of a row's type, and its annotation.
function signature.type_text(row)
   row.type = row.type or type_of(row.kind)
   return row.kind, row.type[4]
end

return signature
