-- Wrappers of C functions from rows: one line per function, a prototype each.
--
-- A row is the signature of a method, each argument with its kind. It is expanded to the text of a
-- function that checks the arguments, calls C.tide_<name> and owns the result:
--
--    make 'sum(x, dim: dims, keepdim: flag)'
--
-- The text is compiled on its own, because functions that share a prototype (closures of one
-- factory) share their traces, and a trace for one op would be tried by all. It is compiled as that
-- very line of the caller's file, so that help, errors and profiles point to the row, with the
-- comment above it.
--
-- An argument without a kind is a tensor, or what adders was told. A kind may be followed by its
-- least and greatest value, and by `=` and the meaning of nil. The first argument, a tensor or a
-- context, records failures. If C takes the arguments in another order, that order follows `->`,
-- where nil may stand, too; a name that differs precedes `:` at the front ('axpy_: add_(x, src)').

local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'

local M = {}

jit.off(true, true) -- each row is read once; its function compiles

-- The names that the text of a wrapper may use.
local names = 'fill, C, new_box, take, again, check, tensor, maybe, operand, pair, dim_of, '
   .. 'ndim_of, dims_of, flag, int, finite, number, dtype_of'
local head = 'local ' .. names .. ' = ... return '
local function values(fill)
   return fill, lib.C, own.new_box, own.take, own.again, own.check, arg.tensor, arg.tensor_or_nil,
      arg.operand, arg.pair, arg.dim, arg.ndim, arg.dims, arg.flag, arg.int, arg.finite, arg.number,
      arg.dtype
end

-- Compiles a text: on a rank, through the table that the ranks share.
local host = package.loaded['tide.host']
local compile = type(host) == 'table' and host.compile or loadstring

-- The check of each kind. In its text OP is the op, X the first argument, N this one, V its value
-- (or the default), R its range and VR both.
local checks = {
   tensor = "tensor('OP', 'N', V)",
   maybe = "maybe('OP', 'N', V)",                           -- a tensor or nil
   operand = "N = operand('OP', 'N', X, V)",                -- a tensor or a number
   pair = "X, N = pair('OP', X, V)",                        -- operand, and X may be the number
   dim = "N = dim_of('OP', 'N', V, ndim_of(X))",
   newdim = "N = dim_of('OP', 'N', V, ndim_of(X) + 1)",     -- a dim of a result with one dim more
   dims = "local N_n, N_dims = dims_of('OP', X, V)",        -- an integer, a list, or nil for all
   flag = "N = flag('OP', 'N', V)",
   int = "N = int('OP', 'N', VR)",
   finite = "N = finite('OP', 'N', VR)",
   number = "N = number('OP', 'N', V)",
   dtype = "N = dtype_of('OP', 'N', V)",
   raw = '',                                                -- checked by the caller
   fill = "N = fill('OP', V, X)",                           -- options, by the caller's function
}

-- One argument of a row: { name =, kind =, range =, default = }. usual: the kind of one without.
local function argument(text, usual)
   local front, default = text:match '^%s*([^=]-)%s*=%s*(.-)%s*$'
   local name, kind, range = (front or text):match '^%s*([%w_]+):?%s*(%a*)%s*(.-)%s*$'
   return {
      name = name, kind = kind == '' and usual or kind, range = range:gsub('%S+', ', %0'),
      default = default,
   }
end

-- Arguments of a row as a list; those of C as a text.
local function arguments(list, order, usual)
   local args, passed = {}, {}
   for text in list:gmatch '[^,]+' do
      local a = argument(text, usual)
      args[#args + 1] = a
      args[a.name] = a
      passed[#passed + 1] = a.name
   end
   local text = order or table.concat(passed, ', ')
   for _, a in ipairs(args) do
      if a.kind == 'dims' then
         text = text:gsub('%f[%w_]' .. a.name .. '%f[^%w_]', a.name .. '_n, ' .. a.name .. '_dims')
      end
   end
   return args, text
end

-- A template with its words in capitals replaced by parts.
local function filled(template, parts) return (template:gsub('%f[%w]%u+%f[^%w]', parts)) end

local function check_of(a, first)
   local value = a.name
   if a.default then value = ('%s == nil and %s or %s'):format(a.name, a.default, a.name) end
   local text = checks[a.kind]
   if not text then error(('row: no kind %s'):format(a.kind)) end
   return text ~= '' and filled(text, { OP = '\1', X = first, N = a.name, V = value, R = a.range,
      VR = value .. a.range }) or text
end

-- The first arguments of C, and the code after the checks: a fresh result or two of them, or the
-- changed first argument; `once` makes no second try when memory runs out.
local second_try = 'if rc ~= 0 and again(X, rc) then check(X, CALLED) end '
local tails = {
   make = { 'box, ', 'local box = new_box() local rc = CALLED ' .. second_try
      .. 'return take(box)' },
   two = { 'box, more, ', 'local box, more = new_box(), new_box() local rc = CALLED '
      .. second_try .. 'more = take(more) return take(box), more' },
   place = { '', 'local rc = CALLED ' .. second_try .. 'return X' },
   once = { '', 'check(X, CALLED) return X' },
}

-- The function of wrappers of one shape. In it \1 is the name of the op, \2 that of the C function.
local function shape(list, order, tail, usual)
   local args, passed = arguments(list:sub(2, -2), order, usual)
   local first, params, text = args[1].name, {}, {}
   for i, a in ipairs(args) do
      params[i] = a.name
      -- A pair checks its first half too.
      local halved = i == 1 and args[2] and args[2].kind == 'pair'
      if not halved then text[#text + 1] = check_of(a, first) end
   end
   text[#text + 1] = filled(tails[tail][2], { X = first,
      CALLED = ('C.tide_\2(%s%s)'):format(tails[tail][1], passed) })
   return ('function(%s) %s end'):format(table.concat(params, ', '), table.concat(text, ' '))
end

-- By all of a row but its names, and by how it ends: many rows have one shape.
local shapes = {}

-- The function of a row, and its name.
local function source(row, tail, usual)
   local symbol, op, list, rest = row:match '^([%w_]-):? ?([%w_]+)(%b())(.*)$'
   local key = tail .. usual .. list .. rest
   shapes[key] = shapes[key] or shape(list, rest:match '%-> (.*)$', tail, usual)
   if symbol == '' then symbol = op end
   return (shapes[key]:gsub('[\1\2]', { ['\1'] = op, ['\2'] = symbol })), op
end

-- Returns functions that add wrappers to `into`: of C functions that make a tensor (the first
-- argument of C), of those that change their first argument, which is returned, with a second try
-- and without one, and of those that make two tensors. usual: the kind of arguments that name none
-- ('tensor'); 'raw' for functions behind a wrapper that has checked them. fill(op, opts, x): turns
-- the options of a row into what C takes.
function M.adders(into, usual, fill)
   local function adder(tail)
      return function(row)
         local text, name = source(row, tail, usual or 'tensor')
         local at = debug.getinfo(2, 'Sl')
         text = ('\n'):rep(at.currentline - 1) .. head .. text
         into[name] = assert(compile(text, at.source))(values(fill))
      end
   end
   return adder 'make', adder 'place', adder 'once', adder 'two'
end

return M
