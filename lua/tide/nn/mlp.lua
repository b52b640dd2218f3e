-- MLP: the gated form down(act(gate x) * (up x)) (Shazeer, arXiv 2002.05202) with silu or gelu,
-- and the plain two-matrix form down(act(up x)). The gate and up weights may be one matrix.

local tide = require 'tide'
local class = require 'tide.class'
local err = require 'tide.util.err'
local Module = require 'tide.nn.module'
local Linear = require 'tide.nn.linear'

local MLP = class('MLP', Module)

-- Children that read the same input.
MLP.shared_input = { 'gate_proj', 'up_proj' }

local acts = { 'swiglu', 'geglu_tanh', 'gelu', 'gelu_tanh', 'relu', 'relu2', 'silu' }
local is_gated = { swiglu = true, geglu_tanh = true }

-- opts: dim, hidden, act ('swiglu'), bias (false), std, out_std, fused (false; one gate_up_proj of
-- the gate's rows and then the others; gated forms only).
function MLP:init(opts)
   local op = 'nn.MLP'
   opts = Module.options(op, opts, { 'dim', 'hidden', 'act', 'bias', 'std', 'out_std', 'fused' })
   err.integer(op, 'dim', opts.dim, 1)
   err.integer(op, 'hidden', opts.hidden, 1)
   Module.init(self)
   self.act = err.choice(op, 'act', opts.act or 'swiglu', acts)
   local bias = opts.bias or false
   local function linear(nin, nout, std)
      return Linear(nin, nout, Module.inner(opts, { bias = bias, std = std }))
   end
   if opts.fused then
      if not is_gated[self.act] then err.arg(op, 'fused', 'a gated act with it', self.act) end
      self:child('gate_up_proj', linear(opts.dim, 2 * opts.hidden, opts.std))
   else
      if is_gated[self.act] then
         self:child('gate_proj', linear(opts.dim, opts.hidden, opts.std))
      end
      self:child('up_proj', linear(opts.dim, opts.hidden, opts.std))
   end
   self:child('down_proj', linear(opts.hidden, opts.dim, opts.out_std or opts.std))
   self:ready(opts)
end

-- Gate (nil in the plain form) and up values of x.
function MLP:project(x)
   if self.gate_up_proj then return unpack(self.gate_up_proj(x):chunk(2, -1)) end
   return self.gate_proj and self.gate_proj(x), self.up_proj(x)
end

function MLP:forward(x)
   local gate, up = self:project(x)
   if self.act == 'swiglu' then return self.down_proj(tide.swiglu(gate, up)) end
   if self.act == 'geglu_tanh' then return self.down_proj(gate:gelu_tanh() * up) end
   if self.act == 'relu2' then return self.down_proj(up:relu():square()) end
   return self.down_proj(up[self.act](up))
end

function MLP:detail() return self.act end

return MLP
