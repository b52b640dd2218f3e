-- MLP: the gated form down(act(gate x) * (up x)) (Shazeer, arXiv 2002.05202) with silu or gelu,
-- and the plain two-matrix form down(act(up x)). The gate and up weights may be one matrix.

local tide = require 'tide'
local class = require 'tide.class'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local product = require 'tide.nn.product'
local signature = require 'tide.util.signature'
local joined = require 'tide.nn.joined'
local Module = require 'tide.nn.module'
local Linear = require 'tide.nn.linear'

local MLP = class('MLP', Module)
MLP.mixes = false

-- Children that read the same input.
MLP.shared_input = { 'gate_proj', 'up_proj' }

local is_gated = { swiglu = true, geglu_tanh = true }
-- The activation that the product before it can apply; relu2 is its square.
local in_product = { gelu_tanh = 'gelu_tanh', relu = 'relu', relu2 = 'relu' }

-- Makes the layer and its products.
function MLP:init(opts)
   Module.init(self)
   self.act = opts.act
   local names = opts.names or {}
   self._both, self._down = names.gate_up_proj or 'gate_up_proj', names.down_proj or 'down_proj'
   self._up = not is_gated[self.act] and names.up_proj or 'up_proj'
   local function linear(nin, nout, std, device)
      local inner = Module.inner(opts, { bias = opts.bias, std = std })
      inner.device = device or inner.device
      return Linear(nin, nout, inner)
   end
   if opts.fused then
      err.arg_if(not is_gated[self.act], 'nn.MLP', 'fused', 'a gated act with it', self.act)
      self:child(self._both, linear(opts.dim, 2 * opts.hidden, opts.std))
   elseif is_gated[self.act] then
      for _, name in ipairs(MLP.shared_input) do
         self:child(name, linear(opts.dim, opts.hidden, opts.std, 'null'))
      end
      joined.lay(self, opts.device)
   else
      self:child(self._up, linear(opts.dim, opts.hidden, opts.std))
   end
   self:child(self._down, linear(opts.hidden, opts.dim, opts.out_std or opts.std))
   self:ready(opts)
end

-- Returns gate and up values of x; the gate is nil in the plain form.
function MLP:project(x)
   if self[self._both] then
      local both = self[self._both](x)
      return unpack(private.replace(both, both:chunk(2, -1)))
   end
   local both = self.gate_proj and joined.call(self, MLP.shared_input, x)
   if both then return both[1], both[2] end
   return self.gate_proj and self.gate_proj(x), self[self._up](x)
end

-- Returns act(up x) of the plain form, in one op if the projection has no hooks or wraps.
function MLP:activated(x)
   local m, act = self[self._up], in_product[self.act]
   local y
   if act and product.is_plain(m) and self.project == MLP.project then
      y = tide.linear_act(x, m.weight, m.bias, act)
   else
      local _, up = private.call(self.project, self, x)
      y = private.replace(up, up[act or self.act](up))
   end
   return self.act == 'relu2' and private.replace(y, y:square()) or y
end

-- Returns the output [.., dim] of an input x of the same shape.
function MLP:forward(x)
   local h
   if not is_gated[self.act] then
      h = private.call(self.activated, self, x)
   else
      local gate, up = private.call(self.project, self, x)
      if self.act == 'swiglu' then
         h = tide.swiglu(gate, up)
      else
         local g = gate:gelu_tanh()
         h = private.replace(g, g * up)
      end
      private.spend(gate, up)
   end
   return private.replace(h, self[self._down](h))
end
private.note_methods(MLP)

-- Cuts the layer by its hidden channels, or keeps it whole. See Module.tp.
function MLP:tp(_, on)
   local into = { 'gate_proj', self._up, self._both }
   for _, name in ipairs(into) do
      local style, blocks = on.children[name], name == self._both and 2 or 1
      if style and style.output == 'S(-1)' and style.blocks ~= blocks then
         on:refuse('%s: expected a style with %d blocks', name, blocks)
      end
   end
   on:all_or_none(into, self._down,
      'the projections into the hidden layer must be colwise and down_proj rowwise')
end

-- Returns the styles of the projections, see Module.tp_plan.
function MLP:tp_plan()
   return { gate_proj = self.gate_proj and 'colwise', [self._up] = self[self._up] and 'colwise',
      [self._both] = self[self._both] and { 'colwise', blocks = 2 }, [self._down] = 'rowwise' }
end

-- Returns the activation, for the text of a model.
function MLP:detail() return self.act end

return signature.doors('nn.MLP', MLP, {
   init = { opts = {
      'dim: integer >= 1 -- width of input and output',
      'hidden: integer >= 1 -- width between the products',
      "act: 'swiglu' | 'geglu_tanh' | 'gelu' | 'gelu_tanh' | 'relu' | 'relu2' | 'silu' = 'swiglu'"
         .. ' -- the function between them',
      'bias: boolean = false -- adds biases',
      'std: number? >= 0 -- initial standard deviation',
      'out_std: number? >= 0 -- that of down_proj',
      "fused: boolean = false -- one gate_up_proj, the gate's rows first; gated forms only",
      'names: table? -- names of gate_up_proj, down_proj and, of the plain form, up_proj as '
         .. 'children',
      Module.common } },
})
