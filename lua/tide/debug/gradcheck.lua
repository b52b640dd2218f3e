-- Numeric check of gradients: any Lua function of tensors against central differences.
--
-- Element by element for small inputs, and along random directions for all of them. Inputs must be
-- f64: with f32 the difference quotient has two or three digits.

local tide = require 'tide'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local hash = require 'tide.util.hash'

local gradcheck = {}

local function scalar(fn, inputs)
   local y = tide.no_grad(function() return fn(unpack(inputs)) end)
   err.arg_if(not tide.is_tensor(y), 'debug.gradcheck', 'fn', 'a function that returns a tensor of '
      .. 'one element', y)
   err.raise_if(y:numel() ~= 1, 'E_SHAPE', 'debug.gradcheck', 'fn must return one element, got %d',
      y:numel())
   return y:item()
end

-- Lists of gradient values, one list an input; zeros where no gradient arrived. The inputs
-- themselves are not touched: fn sees leaves of their values.
local function analytic(fn, inputs)
   local leaves, list = {}, {}
   scalar(fn, inputs)                    -- fn does what is needed of it
   for i, x in ipairs(inputs) do leaves[i] = x:detach():clone():requires_grad_(true) end
   fn(unpack(leaves)):backward()
   for i, x in ipairs(leaves) do
      local g = x.grad
      list[i] = (g or tide.zeros(x.shape, { dtype = 'f64' })):reshape(-1):tolist()
   end
   return list
end

-- Returns the value of fn with input i replaced by its values plus h times a direction (list).
local function moved(fn, inputs, i, values, direction, h)
   local shifted = {}
   for j = 1, #values do shifted[j] = values[j] + h * direction[j] end
   local copy = { unpack(inputs) }
   copy[i] = tide.tensor(shifted, { dtype = 'f64', device = inputs[i].device })
      :reshape(inputs[i].shape)
   return scalar(fn, copy)
end

local function quotient(fn, inputs, i, values, direction, h)
   return (moved(fn, inputs, i, values, direction, h)
      - moved(fn, inputs, i, values, direction, -h)) / (2 * h)
end

local function compare(report, where, got, want, o)
   local difference = math.abs(got - want)
   report.worst = math.max(report.worst, difference / math.max(1, math.abs(want)))
   local limit = o.atol + o.rtol * math.abs(want)
   err.raise_if(difference ~= difference or difference > limit, 'E_STATE', 'debug.gradcheck',
      '%s: backward gives %.10g, differences give %.10g', where, got, want)
end

local function elements(fn, inputs, i, values, grad, o, report)
   local direction = {}
   for j = 1, #values do direction[j] = 0 end
   for j = 1, #values do
      direction[j] = 1
      compare(report, ('input %d, element %d'):format(i, j), grad[j],
         quotient(fn, inputs, i, values, direction, o.h), o)
      direction[j] = 0
   end
end

local function directions(fn, inputs, i, values, grad, o, report)
   for k = 1, o.directions do
      local direction, along = {}, 0
      for j = 1, #values do
         direction[j] = hash.mix(k, i, j) / 2^31 - 1
         along = along + direction[j] * grad[j]
      end
      compare(report, ('input %d, direction %d'):format(i, k), along,
         quotient(fn, inputs, i, values, direction, o.h), o)
   end
end

-- Compares the gradients of fn(inputs...), one element, with central differences. inputs: list of
-- f64 tensors. Raises at the first difference; returns { worst = largest relative error }.
function gradcheck.check(fn, inputs, opts)
   local o = opts
   for i, x in ipairs(inputs) do
      err.arg_if(not tide.is_tensor(x) or x.dtype ~= 'f64', 'debug.gradcheck',
         ('inputs[%d]'):format(i), 'an f64 tensor', x)
   end
   local grads, report = analytic(fn, inputs), { worst = 0 }
   for i, x in ipairs(inputs) do
      local values = x:detach():reshape(-1):tolist()
      if #values <= o.limit then elements(fn, inputs, i, values, grads[i], o, report) end
      if #values > 0 then directions(fn, inputs, i, values, grads[i], o, report) end
   end
   return report
end

signature.doors('debug.gradcheck', gradcheck, {
   check = { 'fn: function; inputs: table', op = 'debug.gradcheck', opts = {
      'h: number >= 0 = 1e-6 -- step of the differences', 'atol: number >= 0 = 1e-6',
      'rtol: number >= 0 = 1e-5', 'directions: integer >= 0 = 2 -- random ones, for each input',
      'limit: integer >= 0 = 64 -- inputs of more elements are checked by direction only' } },
})

-- The module itself is the function: tide.gradcheck(fn, inputs, opts).
return setmetatable(gradcheck, { calls = gradcheck.check,
   __call = function(_, ...) return gradcheck.check(...) end })
