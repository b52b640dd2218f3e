-- Finds the first module whose output is not finite.
--
-- `watch` hooks every module of a model; the first tensor output that holds a NaN or an infinity
-- raises with the module's path. It reads every output, which slows a training run.

local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
require 'tide.nn.module'                -- the kind 'module'

local nan = {}

-- Returns whether every element of a floating tensor is finite.
function nan.is_finite(t)
   local all = t:isfinite():all():item()
   return all == true or all == 1
end

local floats = { f32 = true, f64 = true, bf16 = true, f16 = true }

local function check(path, class_name, what, values)
   for i = 1, values.n do
      local v = values[i]
      err.raise_if(type(v) == 'cdata' and floats[v.dtype] and not nan.is_finite(v), 'E_STATE',
         'debug.nan', "%s %d of module '%s' (%s) is not finite", what, i, path, class_name)
   end
end

-- Returns a handle whose remove() takes the hooks off. Innermost modules report first.
function nan.watch(model)
   local handles = {}
   model:walk(function(m, path)
      handles[#handles + 1] = m:hook_post(function(_, inputs, ...)
         check(path, m.class_name, 'input', inputs)
         check(path, m.class_name, 'output', { n = select('#', ...), ... })
      end, { by = 'nan' })
   end)
   return {
      remove = function()
         for _, h in ipairs(handles) do h.remove() end
      end,
   }
end

-- Returns the names of parameters or gradients that are not finite.
function nan.parameters(model)
   local list = {}
   for _, entry in ipairs(model:named_parameters()) do
      if not nan.is_finite(entry.param) then list[#list + 1] = entry.name end
      local g = entry.param.grad
      if g ~= nil and not nan.is_finite(g) then list[#list + 1] = entry.name .. ' (gradient)' end
   end
   return list
end

return signature.doors('debug.nan', nan, {
   is_finite = 't: tensor', watch = 'model: module', parameters = 'model: module',
})
