-- Rotary positions (Su et al., RoFormer) from explicit position ids, so that any sequence layout
-- composes. Frequencies are computed once on the host in doubles; `rope.frequencies` is pure.
--
-- Scaling follows the published configuration keys: { rope_type = 'linear', factor = } divides
-- every frequency; 'llama3' divides low frequencies only, with a linear ramp between
-- original/low_freq_factor and original/high_freq_factor.

local err = require 'tide.util.err'
local private = require 'tide.util.private'

local rope = {}

local function scale_llama3(f, s)
   local wave = 2 * math.pi / f
   local long = s.original_max_position_embeddings / s.low_freq_factor
   local short = s.original_max_position_embeddings / s.high_freq_factor
   if wave < short then return f end
   if wave > long then return f / s.factor end
   local ramp = (s.original_max_position_embeddings / wave - s.low_freq_factor)
      / (s.high_freq_factor - s.low_freq_factor)
   return (1 - ramp) * f / s.factor + ramp * f
end

local fields = {
   linear = { 'factor' },
   llama3 = { 'factor', 'low_freq_factor', 'high_freq_factor',
              'original_max_position_embeddings' },
}

-- The kind of a table rope_scaling, whose fields it checks. op: the name that errors carry.
function rope.check_scaling(op, scaling)
   err.type(op, 'rope_scaling', scaling, 'table')
   local kind = scaling.rope_type
   if kind == nil then kind = scaling.type end
   err.choice(op, 'rope_scaling.rope_type', kind, { 'default', 'linear', 'llama3' })
   if scaling.type ~= nil then err.choice(op, 'rope_scaling.type', scaling.type, { kind }) end
   local known = { 'rope_type', 'type' }
   for _, field in ipairs(fields[kind] or {}) do
      err.number(op, 'rope_scaling.' .. field, scaling[field], 1e-9)
      known[#known + 1] = field
   end
   err.options(op .. ': rope_scaling', scaling, known)
   if kind == 'llama3' and scaling.high_freq_factor <= scaling.low_freq_factor then
      err.arg(op, 'rope_scaling.high_freq_factor', 'more than low_freq_factor',
         scaling.high_freq_factor)
   end
   return kind
end

-- List of dim/2 frequencies.
function rope.frequencies(dim, theta, scaling)
   err.integer('nn.rope', 'dim', dim, 2)
   if dim % 2 ~= 0 then err.arg('nn.rope', 'dim', 'an even head size', dim) end
   err.number('nn.rope', 'theta', theta, 1)
   local kind = scaling and rope.check_scaling('nn.rope', scaling) or 'default'
   local list = {}
   for i = 0, dim / 2 - 1 do
      local f = theta ^ (-2 * i / dim)
      if kind == 'linear' then f = f / scaling.factor end
      if kind == 'llama3' then f = scale_llama3(f, scaling) end
      list[i + 1] = f
   end
   return list
end

local Rope = { constant = true }       -- the same on every rank: see util.canonical
Rope.__index = Rope

-- opts: dim (head size), theta (10000), scaling, interleaved (false).
function rope.new(opts)
   err.type('nn.rope.new', 'opts', opts, 'table')
   err.options('nn.rope.new', opts, { 'dim', 'theta', 'scaling', 'interleaved' })
   return setmetatable({
      list = rope.frequencies(opts.dim, opts.theta or 10000, opts.scaling),
      options = { interleaved = opts.interleaved or false }, by_device = {},
   }, Rope)
end

-- x_BTHD turned by positions [B or 1, T]. Frequencies are made once a device and outlive step
-- scopes: a captured step could not make them.
function Rope:apply(x_BTHD, positions)
   local tide = require 'tide'
   if not tide.is_tensor(x_BTHD) then
      err.arg('nn.rope.apply', 'x', 'a tensor [B, T, H, D]', x_BTHD)
   end
   local device = x_BTHD.device
   local inv_freq = self.by_device[device]
   if not inv_freq or inv_freq:is_gone() then
      inv_freq = require 'tide.util.outlive'(tide.tensor(self.list,
         { dtype = 'f32', device = device }))
      self.by_device[device] = inv_freq
   end
   return tide.rope(x_BTHD, positions, inv_freq, self.options)
end
private.note(Rope.apply)

return rope
