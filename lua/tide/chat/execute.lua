-- Statements: execute(rt, body, scope) writes to rt.out. Returns 'break' or 'continue' for the
-- enclosing loop, else nil.
--
-- A scope is { vars, parent }. Bodies of loops, macros, calls, filters, `with` and captured blocks
-- have one of their own; those of `if` do not.

local evaluate = require 'tide.chat.evaluate'
local fault = require 'tide.chat.fault'
local globals = require 'tide.chat.globals'
local loops = require 'tide.chat.loops'
local macros = require 'tide.chat.macros'
local show = require 'tide.chat.show'
local value = require 'tide.chat.value'

local S = {}

-- Runs a body; see the head of the file.
local function execute(rt, body, scope)
   for _, node in ipairs(body) do
      rt:step(node)
      local jump = S[node.kind](rt, node, scope)
      if jump then return jump end
   end
end

local function inner(scope) return { vars = {}, parent = scope } end

-- Returns the text that a body writes.
local function captured(rt, body, scope)
   local before = rt.out
   rt.out = { size = 0 }
   execute(rt, body, scope)
   local text = table.concat(rt.out)
   rt.out = before
   return text
end

function S.data(rt, node) rt:put(node.text) end

function S.output(rt, node, scope)
   local v = evaluate(rt, node.value, scope)
   rt.node = node
   rt:put(show.str(v))
end

-- ---- assignment --------------------------------------------------------------------------------

local function set_field(rt, target, v, scope)
   local object = evaluate(rt, { kind = 'name', name = target.name, at = target.at }, scope)
   if value.class(object) ~= value.Namespace then
      fault.raise 'cannot assign attribute on non-namespace object'
   end
   globals.check_field(target.field)
   object.fields:set(target.field, v)
end

-- Assigns a value to a name, a field of a namespace, or a tuple of these.
local function assign(rt, target, v, scope)
   if target.kind == 'name' then
      scope.vars[target.name] = v
   elseif target.kind == 'field' then
      set_field(rt, target, v, scope)
   else
      local items, n = value.iterate(v), #target.items
      if #items < n then
         fault.raise('not enough values to unpack (expected %d, got %d)', n, #items)
      elseif #items > n then
         fault.raise('too many values to unpack (expected %d)', n)
      end
      for i, item in ipairs(target.items) do assign(rt, item, items[i], scope) end
   end
end

function S.set(rt, node, scope)
   local v = evaluate(rt, node.value, scope)
   rt.node = node
   assign(rt, node.target, v, scope)
end

-- Returns the value of a filter over a text.
local function filtered(rt, filter, text, scope)
   local before = rt.captured
   rt.captured = text
   local v = evaluate(rt, filter, scope)
   rt.captured = before
   return v
end

function S.set_block(rt, node, scope)
   local v = captured(rt, node.body, inner(scope))
   if node.filter then v = filtered(rt, node.filter, v, scope) end
   assign(rt, node.target, v, scope)
end

S['with'] = function(rt, node, scope)
   local own, values = inner(scope), {}
   for i, expression in ipairs(node.values) do values[i] = evaluate(rt, expression, scope) end
   for i, target in ipairs(node.targets) do assign(rt, target, values[i], own) end
   return execute(rt, node.body, own)
end

-- ---- branches and loops ------------------------------------------------------------------------

S['if'] = function(rt, node, scope)
   for _, branch in ipairs(node.branches) do
      if value.truth(evaluate(rt, branch.test, scope)) then
         return execute(rt, branch.body, scope)
      end
   end
   if node.other then return execute(rt, node.other, scope) end
end

-- Returns the items that pass the loop's `if`.
local function chosen(rt, node, items, scope)
   if not node.test then return items end
   local list = {}
   for _, item in ipairs(items) do
      local own = inner(scope)
      assign(rt, node.target, item, own)
      if value.truth(evaluate(rt, node.test, own)) then list[#list + 1] = item end
   end
   return list
end

-- Runs a loop over a value; depth0: how deep a recursive loop is.
local function run_loop(rt, node, iterable, scope, depth0)
   local items = chosen(rt, node, value.iterate(iterable), scope)
   local loop = loops.new(items, depth0)
   if node.recursive then
      loop.recurse = function(more)
         local before = rt.out
         rt.out = { size = 0 }
         rt:enter()
         run_loop(rt, node, more, scope, depth0 + 1)
         rt:leave()
         local text = table.concat(rt.out)
         rt.out = before
         return text
      end
   end
   local is_complete = false
   for i, item in ipairs(items) do
      local own = inner(scope)
      rt:step(node)
      loop.index = i
      own.vars.loop = loop
      assign(rt, node.target, item, own)
      local jump = execute(rt, node.body, own)
      if jump == 'break' then break end
      is_complete = is_complete or not jump
   end
   -- Jinja also runs the `else` branch if every iteration ended in break or continue.
   if not is_complete and node.other then return execute(rt, node.other, inner(scope)) end
end

S['for'] = function(rt, node, scope)
   local iterable = evaluate(rt, node.iter, scope)
   rt.node = node
   return run_loop(rt, node, iterable, scope, 0)
end

S['break'] = function() return 'break' end
S['continue'] = function() return 'continue' end

-- ---- macros and captured blocks ----------------------------------------------------------------

-- Returns the macro of a node; its body sees the scope where it is defined.
local function macro_of(node, name, scope)
   return macros.new(node, name, function(rt, fill)
      local own = inner(scope)
      fill(own.vars, function(default) return evaluate(rt, default, own) end)
      return captured(rt, node.body, own)
   end)
end

function S.macro(_, node, scope) scope.vars[node.name] = macro_of(node, node.name, scope) end

function S.call_block(rt, node, scope)
   local call = { kind = 'call', at = node.call.at, callee = node.call.callee,
      args = node.call.args, caller = macro_of(node, 'caller', scope) }
   rt:put(show.str(evaluate(rt, call, scope)))
end

function S.filter_block(rt, node, scope)
   local own = inner(scope)
   rt:put(show.str(filtered(rt, node.filter, captured(rt, node.body, own), own)))
end

function S.generation(rt, node, scope)
   local text = captured(rt, node.body, inner(scope))
   local start = rt.root.size
   rt.ranges[#rt.ranges + 1] = { start, start + #text }
   rt:put(text)
end

return execute
