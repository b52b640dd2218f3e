-- The window of attention: how far a key may lie from its query, { left, right }, where -1 or nil
-- is any distance and a single number is both sides.
--
-- Configurations give it in tokens, the query's own included: sliding_window = n is { n - 1, -1 }.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'

local window = {}

-- Returns the window { left, right } of an option called `name`; nil for nil.
function window.check(op, name, w)
   if w == nil then return nil end
   if type(w) == 'number' then
      err.integer(op, name, w, 0)
      return { w, w }
   end
   if type(w) ~= 'table' then err.arg(op, name, 'an integer or { left, right }', w) end
   for k in each(w) do
      err.arg_if(not (err.same(k, 1) or err.same(k, 2)), op, name, 'an integer or { left, right }',
         w)
   end
   local left, right = w[1], w[2]
   if left == nil then left = -1 end
   if right == nil then right = -1 end
   return { err.integer(op, name .. '[1]', left, -1), err.integer(op, name .. '[2]', right, -1) }
end

-- Returns the distances to the left and to the right that a window allows; -1 is any.
function window.sides(w)
   if type(w) == 'table' then return w[1] or -1, w[2] or -1 end
   return w or -1, w or -1
end

-- Returns the window of a causal layer in which each token sees n, itself included.
function window.of_tokens(op, name, n)
   if n == nil then return nil end
   return { err.integer(op, name, n, 1) - 1, -1 }
end

signature.reader('window', 'an integer or { left, right }', window.check, 'integer|integer[]')
return window
