-- Signatures as data: one declaration of what an entry point takes, from which come the checks of
-- its arguments, its help, the type annotations and the reference of the guides.
--
--    signature.doors('data.sampler', sampler, {
--       permutation = 'n: integer >= 1; seed: integer >= 0; epoch: integer >= 0',
--       new = { opts = {
--          'seq: integer >= 1 -- tokens of a window',
--          'seed: integer >= 0 = 0 -- decides the order' } },
--    })
--
-- puts a check in front of sampler.permutation and sampler.new; a function that takes both writes
-- { 'nin: integer >= 1', opts = { ... } }. A row reads "name: type = default -- meaning":
--
--    integer, number, boolean, string, table, function, any, float (a floating dtype), tensor,
--    ranks, comm, sharded, or what signature.kind made
--    integer?                  may be absent; so may what has a default
--    integer[]                 a list of them
--    integer >= 1, integer in [2, 4], number in [0, 1)      or a bound that is an argument before
--                              it: integer in [0, size)
--    tensor [batch, tokens]    a tensor of as many dims; '..' stands for any number of them
--    'sum' | 'mean'            one of these words; number >= 0 | function: one of these types
--
-- A default is a number, true, false, 'a word', or the name of an argument before it. A table of
-- options arrives as a checked copy with its defaults; an unknown name is E_ARG with the nearest.
-- Functions that a door does not name are not checked.

local each = require 'tide.util.each'
local err = require 'tide.util.err'

local signature = {}

-- ---- kinds -----------------------------------------------------------------------------------

-- By name: what messages call it, its Lua type, read(op, name, v, lo, hi), its annotation.
local kinds = {
   integer = { 'an integer', 'number', err.integer, 'integer' },
   number = { 'a finite number', 'number', err.number, 'number' },
   ['function'] = { 'a function', 'function', err.func, 'function' },
   any = { 'any value', nil, function(_, _, v) return v end, 'any' },
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
      return test(v) and v or err.arg(op, what, text, v)
   end, annotation or 'table' }
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

-- A tensor of as many dims as `shape` ('[B, T]') names.
local function tensor(shape)
   local text = 'a tensor' .. (shape ~= '' and ' ' .. shape or '')
   local ndim = shape ~= '' and not shape:find('..', 1, true) and select(2, shape:gsub(',', '')) + 1
   return { text, 'cdata', function(op, name, v)
      if not require 'tide'.is_tensor(v) or ndim and v.ndim ~= ndim then
         err.arg(op, name, text, v)
      end
      return v
   end, 'tide.Tensor' }
end

-- ---- types -----------------------------------------------------------------------------------

-- The reader of a kind within a range; values: the arguments before it, which bounds may name.
local function ranged(kind, range)
   local low, high, closing = range:match '^in %[([^,]+),%s*([^%]%)]+)([%]%)])$'
   low = low or range:match '^>= (%S+)$'
   if not low then error('signature: no range: ' .. range) end
   local open = closing == ')'
   return function(op, name, v, values)
      local lo, hi = tonumber(low) or values[low], high and (tonumber(high) or values[high])
      if open and kind[1] == 'an integer' then return kind[3](op, name, v, lo, hi - 1) end
      kind[3](op, name, v, lo, hi)
      if open and v == hi then err.arg(op, name, 'a number ' .. range, v) end
      return v
   end
end

local function listed(read)
   return function(op, name, v, values)
      for i, item in ipairs(err.type(op, name, v, 'table')) do
         read(op, ('%s[%d]'):format(name, i), item, values)
      end
      return v
   end
end

-- { text, Lua type, read(op, name, v, values), annotation } of one alternative of a type.
local function alternative(text)
   local base, list, rest = text:match '^([%w_]+)(%[?%]?)%s*(.-)%s*$'
   local kind = base == 'tensor' and tensor(rest) or kinds[base]
   if not kind then error('signature: no kind: ' .. text) end
   local within, read = rest ~= '' and base ~= 'tensor', kind[3]
   local row = { kind[1], kind[2], function(op, name, v) return read(op, name, v) end, kind[4] }
   if within then row[1], row[3] = row[1] .. ' ' .. rest, ranged(kind, rest) end
   return list == '' and row or { 'a list', 'table', listed(row[3]), row[4] .. '[]' }
end

-- The same of a type of several alternatives, which differ by their Lua types.
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

-- ---- rows ------------------------------------------------------------------------------------

local constants = { ['true'] = true, ['false'] = false }

-- The row of "name: type = default -- meaning". Its type is read at the first call, when all kinds
-- are made.
local function row_of(text)
   local head, meaning = text:match '^(.-)%s+%-%-%s+(.*)$'
   local name, kind = (head or text):match '^%s*([%w_]+):%s*(.-)%s*$'
   if not name then error('signature: no row: ' .. text) end
   local bare, default = kind:match '^(.-)%s=%s(.+)$'
   local row = { name = name, meaning = meaning, kind = (bare or kind):gsub('%?', '', 1),
      optional = (bare or kind):find('?', 1, true) ~= nil, shown = default }
   if not default then return row end
   row.default = tonumber(default) or default:match "^'(.*)'$"
   if row.default == nil then row.default = constants[default] end
   if row.default == nil then row.like = default end
   return row
end

-- The checked value of a row; values: the arguments before it.
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
-- ('integer >= 1 = 1'); raises E_ARG if it is not.
function signature.check(op, name, v, text)
   local row = types[text] or row_of('value: ' .. text)
   types[text] = row
   return read(row, op, v, {}, name)
end

local function add_rows(list, texts)
   for _, text in ipairs(texts) do
      if type(text) == 'table' then add_rows(list, text) else list[#list + 1] = row_of(text) end
   end
   return list
end

-- Rows of options, or of arguments parted by ';'.
function signature.rows(given)
   local list = {}
   if type(given) == 'table' then return add_rows(list, given) end
   for text in (given or ''):gmatch '[^;]+' do list[#list + 1] = row_of(text) end
   return list
end

-- Returns a reader of options, read(op, opts), which gives a checked copy with defaults. given: a
-- list of rows, and of lists of rows that several entry points share. before: arguments that bounds
-- and defaults may name, too.
function signature.options(given)
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
      return values
   end, rows
end

-- ---- doors -----------------------------------------------------------------------------------

local doors, by_function = {}, setmetatable({}, { __mode = 'k' })

-- Errors are never shown as made in the checks.
local chunk = debug.getinfo(1, 'S').source

local function parameters(fn)
   local list, info = {}, debug.getinfo(fn, 'u')
   for i = 1, info.nparams do list[i] = debug.getlocal(fn, i) end
   return list, info.isvararg
end

-- _all: the arguments so far, for bounds and defaults that name one; nil where there is no other.
local row_code = '%s = _read(_rows[%d], _op, %s, _all)\n'
local code = 'local _fn, _read, _rows, _op, _options = ...\nreturn function(%s)\nlocal _all = %s\n'
   .. '%sreturn _fn(%s)\nend'

-- A function with the parameters of fn that checks the arguments of rows, and calls fn.
local function checked(door, fn)
   local names, more = parameters(fn)
   local place, lines, several = {}, {}, #door.args > 1 or door.read ~= nil
   for i, name in ipairs(names) do place[name] = i end
   for i, row in ipairs(door.args) do
      local name = row.name
      if not place[name] then error(('signature: %s has no %s'):format(door.op, name)) end
      lines[i] = row_code:format(name, i, name)
      if several then lines[i] = lines[i] .. ('_all.%s = %s\n'):format(name, name) end
   end
   if door.read then
      local last = place.opts and 'opts' or names[#names]
      lines[#lines + 1] = ('%s = _options(_op, %s, _all)\n'):format(last, last)
   end
   if more then names[#names + 1] = '...' end
   local list = table.concat(names, ', ')
   local text = code:format(list, several and '{}' or 'nil', table.concat(lines), list)
   return loadstring(text, chunk)(fn, read, door.args, door.op, door.read)
end

-- Puts checks in front of functions of `owner` (a table or a class), and notes them. given: name ->
-- arguments, or { arguments, opts = rows, op = the name that errors carry }. op: the public name of
-- owner. A constructor `init` has that name itself. `inside = true`: the function reads its options
-- itself (by signature.options), and is only noted. Returns owner.
function signature.doors(op, owner, given)
   for name, said in each(given) do
      said = type(said) == 'table' and said or { said }
      local door = { op = said.op or name == 'init' and op or op .. '.' .. name,
         args = signature.rows(said[1]), of = rawget(owner, name) }
      if said.opts then door.read, door.opts = signature.options(said.opts) end
      door.fn = said.inside and door.of or checked(door, door.of)
      rawset(owner, name, door.fn)
      doors[door.op], by_function[door.fn] = door, door
   end
   return owner
end

-- The door of a function { op, args, opts, of = the function behind it }; nil of others.
function signature.of(fn) return by_function[fn] end

-- All doors by their names.
function signature.all() return doors end

-- The text of a row's type, and its annotation.
function signature.type_text(row)
   row.type = row.type or type_of(row.kind)
   return row.kind, row.type[4]
end

return signature
