-- AdamW with moments of 8 bits (Dettmers et al., arXiv 2110.02861): 2 + 1/32 bytes a weight instead
-- of 8. One fused call a group, which never holds the moments of a parameter in f32.
--
-- Each block of 256 elements of a rank's piece has a scale. Small parameters and f64 ones keep
-- moments as AdamW does, and so do embeddings if a pattern names them. Saved moments are f32, which
-- any mesh reads; the same blocks give the same codes again.

local tide = require 'tide'
local class = require 'tide.class'
local dims = require 'tide.util.dims'
local groups = require 'tide.optim.groups'
local signature = require 'tide.util.signature'
local AdamW = require 'tide.optim.adamw'
local Optimizer = require 'tide.optim.optimizer'

local AdamW8bit = class('AdamW8bit', Optimizer)

AdamW8bit.fields = { 'm', 'v', 'master' }

local block, least = 256, 4096

-- Makes an optimiser of params (see Optimizer:init).
function AdamW8bit:init(params, opts)
   self.min_size, self.wide, opts.min_size, opts.wide = opts.min_size, opts.wide, nil, nil
   Optimizer._begin(self, Optimizer, 'optim.AdamW8bit', params, opts)
end

-- Returns whether the moments of a parameter have 8 bits. shape: of the whole parameter, so all
-- ranks agree.
local function is_coded(name, shape, dtype, min_size, wide)
   return dtype ~= 'f64' and dims.numel(shape) >= min_size
      and not (wide and groups.matches(wide, name))
end

-- Returns the state of a parameter before its first update. entry: { name =, param = }.
function AdamW8bit:new_state(entry)
   local param = entry.param
   if not is_coded(entry.name, entry.shape or param.shape, param.dtype, self.min_size,
      self.wide) then return Optimizer.new_state(self, entry) end
   local function zeros(shape, dtype)
      return tide.zeros(shape, { dtype = dtype, device = param.device })
   end
   local count = { math.ceil(param:numel() / block) }
   return { step = 0, m = zeros(param.shape, 'u8'), v = zeros(param.shape, 'u8'),
      m_scale = zeros(count, 'f32'), v_scale = zeros(count, 'f32'), master = self.master(param) }
end

-- Returns moments as the f32 numbers that their codes represent.
function AdamW8bit:read_field(state, field)
   if field == 'master' or not state.m_scale then return state[field] end
   return tide.update.dequantize8(state[field], state[field .. '_scale'], field == 'm')
end

-- Sets a field of a state from what read_field gave, here or on another mesh.
function AdamW8bit:write_field(state, field, t)
   if field == 'master' or not state.m_scale then
      return Optimizer.write_field(self, state, field, t)
   end
   local codes, scale = tide.update.quantize8(t:to 'f32':to(state[field].device), field == 'm')
   state[field], state[field .. '_scale'] = codes, scale
end

-- Returns the part of a bucket whose moments have 8 bits, or the rest.
local function coded_part(bucket, coded)
   local some = { p = {}, g = {}, states = {}, step = bucket.step, rates = bucket.rates }
   for i, state in ipairs(bucket.states) do
      if (state.m_scale ~= nil) == coded then
         local n = #some.p + 1
         some.p[n], some.g[n], some.states[n] = bucket.p[i], bucket.g[i], state
      end
   end
   return some
end

-- Updates a bucket; see Optimizer:update.
function AdamW8bit:update(group, bucket, lr, opts)
   AdamW.update(self, group, coded_part(bucket, false), lr, opts)
   local some = coded_part(bucket, true)
   tide.update.adamw8_({
      p = some.p, g = some.g, m = self.column(some.states, 'm'),
      v = self.column(some.states, 'v'), m_scale = self.column(some.states, 'm_scale'),
      v_scale = self.column(some.states, 'v_scale'), master = self.column(some.states, 'master'),
      g_scale = opts.factor, rates = some.rates, found_inf = opts.found_inf,
   }, AdamW._attrs(group, some, lr, opts))
end

-- Returns the bytes of state for an element of a parameter.
function AdamW8bit.state_bytes(dtype, entry)
   if not is_coded(entry.name, entry.shape, dtype, least) then
      return Optimizer.bytes_of(dtype, 2)
   end
   return Optimizer.bytes_of(dtype, 0) + 2 * (1 + 4 / block)
end

return signature.doors('optim.AdamW8bit', AdamW8bit, {
   new_state = Optimizer.takes.new_state, update = Optimizer.takes.update,
   read_field = Optimizer.takes.read_field, write_field = Optimizer.takes.write_field,
   init = { opts = {
      AdamW._options,
      ('min_size: integer >= 0 = %d -- parameters of fewer elements keep f32 moments')
         :format(least),
      "wide: string? -- names of more parameters that keep f32 moments ('embed|lm_head')",
      Optimizer.grouping } },
})
