-- The parameters of a model that is not sharded, with the f32 weights of its files.
--
-- A 16-bit parameter is the rounding of the weight in the file. An optimiser with masters begins
-- from the weight itself, as it does where shards are f32, so every mesh makes the same update.
-- Each entry of named_parameters has the weight in field `exact`. The optimiser takes the tensor as
-- its master: the weight has one f32 copy.

local tide = require 'tide'
local class = require 'tide.class'

local Exact = class 'Exact'

-- Begins without a weight.
function Exact:init(model)
   self.model, self.weights = model, {}
end

-- Returns the Exact of what plan:materialise gave, and makes one at first use.
function Exact.of(run)
   return class.is(run.params, Exact) and run.params or Exact(run.model)
end

-- Returns whether a parameter is trained, has 16 bits, and rounds numbers of dtype `stored`.
local function is_rounded(param, stored)
   local is_half = param.dtype == 'bf16' or param.dtype == 'f16'
   return is_half and param.requires_grad and stored ~= param.dtype
end

-- Calls fn(t) with the tensor that takes the weight of an entry: its parameter, or one of f32 where
-- the parameter rounds numbers of dtype `stored`; the parameter then gets the rounding.
function Exact:fill(entry, stored, fn)
   local name, param = entry.name, entry.param:detach()
   if not is_rounded(entry.param, stored) then
      self.weights[name] = nil
      return fn(param)
   end
   local t = self.weights[name]
   if not t or t:is_gone() or t.device ~= param.device then
      t = tide.empty(param.shape, { dtype = 'f32', device = param.device })
      self.weights[name] = t
   end
   fn(t)
   param:copy_(t)
end

-- Makes the weights known to the optimiser of a run (its field params).
function Exact:keep(run)
   run.params = next(self.weights) ~= nil and self or run.model
end

-- Returns the parameters as Module:named_parameters does, each with its weight in field `exact`.
function Exact:named_parameters()
   local list = self.model:named_parameters()
   for _, entry in ipairs(list) do entry.exact = self.weights[entry.name] end
   return list
end

-- Raises as Module:check_holds does.
function Exact:check_holds(op) self.model:check_holds(op) end

return Exact
