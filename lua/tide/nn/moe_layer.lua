-- MoELayer: routed experts and a shared expert, an MLP that each token uses:
--
--    y = routed(x) + g shared(x), where g is 1 or sigmoid(gate(x))
--
-- (DeepSeekMoE, arXiv 2401.06066; the gate is Qwen2-MoE's). Each child reads the stream and adds to
-- it by itself, so tensor and sequence parallelism cut each by its own plan.

local class = require 'tide.class'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local names_ = require 'tide.util.names'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local Linear = require 'tide.nn.linear'
local MLP = require 'tide.nn.mlp'
local MoE = require 'tide.nn.moe'
local Module = require 'tide.nn.module'

local MoELayer = class('MoELayer', Module)
MoELayer.mixes = false
MoELayer.holds_parts = true
MoELayer.takes_at = true

local default_names = { routed = 'routed', shared = 'shared', gate = 'shared_gate' }

-- Refuses parts of other classes, which would compute something else, and names of no part.
local function check(parts)
   local op = 'nn.MoELayer'
   err.arg_if(not class.is(parts.routed, MoE), op, 'routed', 'an nn.MoE', parts.routed)
   err.arg_if(not class.is(parts.shared, MLP), op, 'shared', 'an nn.MLP', parts.shared)
   local gate = parts.gate
   err.arg_if(gate and not (class.is(gate, Linear) and gate.nout == 1), op, 'gate',
      'an nn.Linear to one number', gate)
   err.options(op, parts.names or {}, { 'routed', 'shared', 'gate' })
end

-- Makes the layer of its parts.
function MoELayer:init(parts)
   check(parts)
   Module.init(self)
   self._part, self.branches = {}, {}
   for _, part in ipairs { 'routed', 'shared', 'gate' } do
      if parts[part] then
         local name = (parts.names or {})[part] or default_names[part]
         self:child(name, parts[part])
         self._part[part] = name
         if part ~= 'gate' then self.branches[#self.branches + 1] = name end
      end
   end
end

-- Returns the output [.., C] of an input x of the same shape. at: as for nn.MoE.
function MoELayer:forward(x, at)
   local part = self._part
   local y = self[part.shared](x)
   if part.gate then
      local g = self[part.gate](x)
      g = private.replace(g, g:sigmoid())
      y = private.replace(y, y * g)
      private.spend(g)
   end
   local routed = self[part.routed](x, at)
   y = private.replace(y, routed + y)
   private.spend(routed)
   return y
end
private.note(MoELayer.forward)

-- Adds up the gradients of the gate where the sequence is cut: each rank has some of its tokens.
-- See Module.tp.
function MoELayer:tp(_, on)
   local routed, gate = on.children[self._part.routed], self._part.gate
   if gate and routed and routed.input == 'S(1)' then return { summed = { gate } } end
end

-- Returns the styles of the parts, see Module.tp_plan.
function MoELayer:tp_plan()
   local plan = {}
   for _, name in ipairs(self.branches) do
      for child, style in each(self[name]:tp_plan()) do
         plan[child == '' and name or names_.join(name, child)] = style
      end
   end
   return plan
end

return signature.doors('nn.MoELayer', MoELayer, {
   init = { opts = {
      'routed: module -- an nn.MoE', 'shared: module -- an nn.MLP',
      'gate: module? -- a Linear to one number, whose sigmoid multiplies the output of shared',
      'names: table? -- names of the parts as children' } },
})
