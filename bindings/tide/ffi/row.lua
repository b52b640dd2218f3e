-- Wrappers of C functions from rows: one line per function, a prototype each.
--
-- A row is the signature of a method, each argument with its kind. It is expanded to the text of a
-- function that checks the arguments, calls C.tide_<name> and owns the result:
--
--    make 'sum(x, dim: dims, keepdim: flag)'
--
-- The text is compiled on its own, because functions that share a prototype (closures of one
-- factory) share their traces, and a trace for one op would be tried by all. It is compiled as that
-- line of the caller's file, so that help, errors and profiles point to the row, with the comment
-- above it.
--
-- An argument without a kind has the usual one of adders, a tensor. A kind may be followed by its
-- least and greatest value, and by `=` and the meaning of nil. The first argument, a tensor or a
-- context, records failures. If C takes the arguments in another order, that order follows `->`,
-- which may contain nil; a name that differs precedes `:` at the front ('axpy_: add_(x, src)').

local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local compile = require 'tide.compile'

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

-- Texts that check one argument, by its kind. op: the name in errors; n: the argument; v: its value
-- (or the default); range: its bounds; x: the first argument.
local checks = {
   tensor = function(op, n, v) return ("tensor('%s', '%s', %s)"):format(op, n, v) end,
   -- a tensor or nil
   maybe = function(op, n, v) return ("maybe('%s', '%s', %s)"):format(op, n, v) end,
   -- a tensor or a number
   operand = function(op, n, v, _, x)
      return ("%s = operand('%s', '%s', %s, %s)"):format(n, op, n, x, v)
   end,
   -- operand, and x may be the number
   pair = function(op, n, v, _, x)
      return ("%s, %s = pair('%s', %s, %s)"):format(x, n, op, x, v)
   end,
   dim = function(op, n, v, _, x)
      return ("%s = dim_of('%s', '%s', %s, ndim_of(%s))"):format(n, op, n, v, x)
   end,
   -- a dim of a result with one dim more
   newdim = function(op, n, v, _, x)
      return ("%s = dim_of('%s', '%s', %s, ndim_of(%s) + 1)"):format(n, op, n, v, x)
   end,
   -- an integer, a list, or nil for all
   dims = function(op, n, v, _, x)
      return ("local %s_n, %s_dims = dims_of('%s', %s, %s)"):format(n, n, op, x, v)
   end,
   raw = function() return '' end, -- checked by the caller
   -- options, by the caller's function
   fill = function(op, n, v, _, x) return ("%s = fill('%s', %s, %s)"):format(n, op, v, x) end,
}
for _, kind in ipairs { 'flag', 'int', 'finite', 'number', 'dtype' } do
   local code = "%s = " .. (kind == 'dtype' and 'dtype_of' or kind) .. "('%s', '%s', %s%s)"
   checks[kind] = function(op, n, v, range) return code:format(n, op, n, v, range) end
end

-- Reads one argument of a row: { name =, kind =, range =, value = }. usual: the kind where the row
-- names no kind.
local function argument(text, usual)
   local front, default = text:match '^%s*([^=]-)%s*=%s*(.-)%s*$'
   local name, kind, range = (front or text):match '^%s*([%w_]+):?%s*(%a*)%s*(.-)%s*$'
   return {
      name = name, kind = kind == '' and usual or kind,
      range = range == '' and range or range:gsub('%S+', ', %0'),
      value = default and ('%s == nil and %s or %s'):format(name, default, name) or name,
   }
end

-- Returns the arguments of a row as a list, and those of the C function as a text, in another order
-- if one is given.
local function arguments(list, order, usual)
   local args, passed = {}, {}
   for text in list:gmatch '[^,]+' do
      local a = argument(text, usual)
      args[#args + 1] = a
      args[a.name] = a
   end
   local function as_passed(name)
      local counted = args[name] and args[name].kind == 'dims'
      return counted and name .. '_n, ' .. name .. '_dims' or name
   end
   if order then return args, (order:gsub('[%w_]+', as_passed)) end
   for i, a in ipairs(args) do passed[i] = as_passed(a.name) end
   return args, table.concat(passed, ', ')
end

-- The first arguments of C, and the code after the checks, of call and first argument: a fresh
-- result, two or three of them, or the changed first argument; `once` makes no second try when
-- memory runs out.
local second_try = ' if rc ~= 0 and again(%s, rc) then check(%s, %s) end '
local make = 'local box = new_box() local rc = %s' .. second_try .. 'return take(box)'
local two = 'local box, more = new_box(), new_box() local rc = %s' .. second_try
   .. 'more = take(more) return take(box), more'
local three = 'local box, more, last = new_box(), new_box(), new_box() local rc = %s' .. second_try
   .. 'more, last = take(more), take(last) return take(box), more, last'
local place = 'local rc = %s' .. second_try .. 'return %s'
local tails = {
   make = { 'box, ', function(call, x) return make:format(call, x, x, call) end },
   two = { 'box, more, ', function(call, x) return two:format(call, x, x, call) end },
   three = { 'box, more, last, ', function(call, x)
      return three:format(call, x, x, call)
   end },
   place = { '', function(call, x) return place:format(call, x, x, call, x) end },
   once = { '', function(call, x) return ('check(%s, %s) return %s'):format(x, call, x) end },
}

-- Returns the text of a wrapper, and its name.
local function source(row, tail, usual)
   local symbol, op, list, rest = row:match '^([%w_]-):? ?([%w_]+)(%b())(.*)$'
   local args, passed = arguments(list:sub(2, -2), rest:match '%-> (.*)$', usual)
   local first, params, text = args[1].name, {}, {}
   for i, a in ipairs(args) do
      params[i] = a.name
      local check = checks[a.kind]
      if not check then error(('row %s: no kind %s'):format(op, a.kind)) end
      -- A pair checks its first half too.
      local halved = i == 1 and args[2] and args[2].kind == 'pair'
      if not halved then text[#text + 1] = check(op, a.name, a.value, a.range, first) end
   end
   local call = ('C.tide_%s(%s%s)'):format(symbol == '' and op or symbol, tails[tail][1], passed)
   text[#text + 1] = tails[tail][2](call, first)
   return ('function(%s) %s end'):format(table.concat(params, ', '), table.concat(text, ' ')), op
end

-- Returns functions that add wrappers to `into`: of C functions that make a tensor (the first
-- argument of C), of those that change their first argument, which is returned, with a second try
-- and without one, and of those that make two tensors and three. usual: the kind of arguments that
-- name none ('tensor'); 'raw' for functions behind a wrapper that has checked them. fill(op, opts,
-- x): turns the options of a row into what C takes.
function M.adders(into, usual, fill)
   local function adder(tail)
      return function(row)
         local text, name = source(row, tail, usual or 'tensor')
         local at = debug.getinfo(2, 'Sl')
         text = ('\n'):rep(at.currentline - 1) .. head .. text
         into[name] = assert(compile(text, at.source))(values(fill))
      end
   end
   return adder 'make', adder 'place', adder 'once', adder 'two',
      adder 'three'
end

return M
