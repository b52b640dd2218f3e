-- Rotary positions (Su et al., RoFormer) from explicit position ids, so that any sequence layout
-- composes. Frequencies are computed on the host in doubles; `rope.frequencies` is pure.
--
-- Scaling follows the published configuration keys, see nn/rope_scaling.lua: 'linear' divides every
-- frequency, 'llama3' and 'yarn' divide the low ones, 'dynamic' and 'longrope' depend on the length
-- of the sequence, which the caller of apply gives.

local err = require 'tide.util.err'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local scaling = require 'tide.nn.rope_scaling'

local rope = { check_scaling = scaling.check, frequencies = scaling.frequencies }

local Rope = { constant = true }       -- the same on every rank: see util.canonical
Rope.__index = Rope

-- Makes rotary positions. Fields of the result: attention_factor, by which the caller of apply
-- multiplies rotated queries and keys (see factors); trained_length, the length of the sequence
-- from which on frequencies change with it, or nil.
function rope.new(opts)
   return setmetatable({
      list = rope.frequencies(opts.dim, opts.theta, opts.scaling),
      options = { interleaved = opts.interleaved }, by_device = {}, _longest = {},
      attention_factor = scaling.attention_factor(opts.scaling), dim = opts.dim, theta = opts.theta,
      scaling = opts.scaling, trained_length = scaling.trained_length(opts.scaling),
   }, Rope)
end

-- Returns frequencies on x's device for a sequence of this length: f64 for an f64 x, else f32. They
-- are made once each and outlive step scopes, since a captured step could not make them.
local function frequencies_for(self, x, length)
   local dtype = x.dtype == 'f64' and 'f64' or 'f32'
   local place = x.device .. ' ' .. dtype
   local key = place
   if self.trained_length and length and length > self.trained_length then
      if self.scaling.rope_type == 'longrope' or self.scaling.type == 'longrope' then
         length = self.trained_length + 1
      end
      key = place .. ' of length ' .. length
   else
      length = nil
   end
   local inv_freq = self.by_device[key]
   if inv_freq and not inv_freq:is_gone() then return inv_freq end
   local list = length and rope.frequencies(self.dim, self.theta, self.scaling, length)
      or self.list
   inv_freq = require 'tide.util.outlive'(require('tide').tensor(list,
      { dtype = dtype, device = x.device }))
   local before = self._longest[place]
   if length and before then self.by_device[before] = nil end
   self.by_device[key], self._longest[place] = inv_freq, length and key or before
   return inv_freq
end

local function check_tensor(op, name, x)
   err.arg_if(not require('tide').is_tensor(x), 'nn.rope.' .. op, name, 'a tensor [B, T, H, D]', x)
end

-- Returns x_BTHD rotated by positions [B or 1, T]. length: of the whole sequence (the largest
-- position plus one), for frequencies that depend on it.
function Rope:apply(x_BTHD, positions, length)
   local tide = require 'tide'
   check_tensor('apply', 'x', x_BTHD)
   local inv_freq = frequencies_for(self, x_BTHD, length)
   return tide.rope(x_BTHD, positions, inv_freq, self.options)
end
private.note(Rope.apply)

-- Returns the results of apply for q and for k of one batch and sequence, in one pass unless apply
-- was replaced. reuse: the results take the memory of q and k.
function Rope:apply_both(q, k, positions, length, reuse)
   check_tensor('apply_both', 'q', q)
   local apply = self.apply
   if apply ~= Rope.apply then
      return private.call(apply, self, q, positions, length),
         private.call(apply, self, k, positions, length)
   end
   local list = require('tide').rope_joined({ q, k }, positions,
      frequencies_for(self, q, length), { interleaved = self.options.interleaved, reuse = reuse })
   return list[1], list[2]
end
private.note(Rope.apply_both)

-- Returns the factors [D] of queries x [B, T, H, D] that make their products with keys as if the
-- rotated channels of both were multiplied by attention_factor.
function Rope:factors(x)
   err.arg_if(not require('tide').is_tensor(x) or x.ndim ~= 4, 'nn.rope.factors', 'x',
      'a tensor [B, T, H, D]', x)
   local key = ('%s %s %d'):format(x.device, x.dtype, x:size(4))
   local factors = self.by_device[key]
   if factors and not factors:is_gone() then return factors end
   local list = {}
   for i = 1, x:size(4) do list[i] = i <= self.dim and self.attention_factor ^ 2 or 1 end
   factors = require 'tide.util.outlive'(require('tide').tensor(list,
      { dtype = x.dtype, device = x.device }))
   self.by_device[key] = factors
   return factors
end

-- Returns the length of the sequence whose positions these are [B or 1, T], on one rank or those of
-- comm; nil where frequencies do not depend on it. Waits for the device.
function Rope:length_of(positions, comm)
   if not self.trained_length then return nil end
   local longest = positions:amax():item()
   if comm and comm.size > 1 then
      for _, n in ipairs(comm:all_gather_object(longest)) do longest = math.max(longest, n) end
   end
   return longest + 1
end

return signature.doors('nn.rope', rope, { new = { opts = {
   'dim: integer in [2, 65536] -- channels of a head that rotate, the first ones',
   'theta: number >= 1 = 10000 -- the rotary base',
   'scaling: table? -- a published rope_scaling',
   'interleaved: boolean = false -- pairs lie side by side' } } })
