-- Rotary positions (Su et al., RoFormer) from explicit position ids, so that any sequence layout
-- composes. Frequencies are computed on the host in doubles; `rope.frequencies` is pure.
--
-- Scaling follows the published configuration keys, see nn/rope_scaling.lua: 'linear' divides every
-- frequency, 'llama3' and 'yarn' divide the low ones, 'dynamic' and 'longrope' depend on the length
-- of the sequence, which the caller of apply gives.
--
-- Positions may have several rows (M-RoPE, arXiv 2409.12191: time, height and width): each row
-- turns some of the frequencies. A rotation by one row leaves the channels of the others exactly as
-- they are, so that rows are turned one after the other.

local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local scaling = require 'tide.nn.rope_scaling'

local rope = { check_scaling = scaling.check, frequencies = scaling.frequencies,
   _mscale = scaling.mscale }

local Rope = { constant = true }       -- the same on every rank: see util.canonical
Rope.__index = Rope

-- Returns the frequencies of rotary positions along opts.axes axes, and the axis of each: every
-- axis turns an equal share of the channels from the same frequencies.
local function of_axes(opts)
   local n, list, rows = opts.axes, {}, {}
   local share = rope.frequencies(opts.dim / n, opts.theta)
   for axis = 1, n do
      for _, f in ipairs(share) do list[#list + 1], rows[#rows + 1] = f, axis end
   end
   return list, rows
end

-- Makes rotary positions. Fields of the result: attention_factor, by which the caller of apply
-- multiplies rotated queries and keys (see factors); trained_length, the length of the sequence
-- from which on frequencies change with it, or nil; rows, the row of positions by which each
-- frequency turns, and row_count, the number of rows, or nil where positions have one row.
function rope.new(opts)
   local list, rows
   if opts.axes then
      list, rows = of_axes(opts)
   else
      list = rope.frequencies(opts.dim, opts.theta, opts.scaling)
      rows = scaling.rows(opts.dim, opts.scaling)
   end
   return setmetatable({
      list = list, rows = rows, row_count = rows and (opts.axes or 3),
      options = { interleaved = opts.interleaved }, by_device = {}, _longest = {},
      attention_factor = scaling.attention_factor(opts.scaling), dim = opts.dim, theta = opts.theta,
      scaling = opts.scaling, trained_length = scaling.trained_length(opts.scaling),
   }, Rope)
end

-- Returns a list of frequencies with 0 in place of those that another row turns.
local function only_of(self, list, row)
   local out = {}
   for i, f in ipairs(list) do out[i] = self.rows[i] == row and f or 0 end
   return out
end

-- Returns frequencies on x's device for a sequence of this length: f64 for an f64 x, else f32; with
-- a row of positions those that it turns, 0 for the others. They are made once each and outlive
-- step scopes, since a captured step could not make them.
local function frequencies_for(self, x, length, row)
   local dtype = x.dtype == 'f64' and 'f64' or 'f32'
   local place = x.device .. ' ' .. dtype .. (row and ' row ' .. row or '')
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
   if row then list = only_of(self, list, row) end
   inv_freq = require 'tide.util.outlive'(require('tide').tensor(list,
      { dtype = dtype, device = x.device }))
   local before = self._longest[place]
   if length and before then self.by_device[before] = nil end
   self.by_device[key], self._longest[place] = inv_freq, length and key or before
   return inv_freq
end

local function check_tensors(op, name, x, positions)
   local is = require('tide').is_tensor
   err.arg_if(not is(x), 'nn.rope.' .. op, name, 'a tensor [B, T, H, D]', x)
   err.arg_if(not is(positions), 'nn.rope.' .. op, 'positions', 'a tensor [B or 1, T]', positions)
end

-- Raises unless positions have all rows.
local function check_rows(self, op, positions)
   local n = self.row_count
   if n and positions:size(1) == n then return end
   err.raise('E_SHAPE', 'nn.rope.' .. op, 'positions: expected [B or 1, T]%s, got [%s]', n
      and (' or [%d, B or 1, T]'):format(n) or ' (mrope_section of rope_scaling gives three rows)',
      table.concat(positions.shape, ', '))
end

-- Returns x_BTHD rotated by positions [B or 1, T], or [rows, B or 1, T] where they have several.
-- length: of the whole sequence (the largest position plus one), for frequencies that depend on it.
function Rope:apply(x_BTHD, positions, length)
   local tide = require 'tide'
   check_tensors('apply', 'x', x_BTHD, positions)
   if positions.ndim ~= 3 then
      return tide.rope(x_BTHD, positions, frequencies_for(self, x_BTHD, length), self.options)
   end
   check_rows(self, 'apply', positions)
   local y = x_BTHD
   for row = 1, self.row_count do
      local turned = tide.rope(y, positions:select(1, row),
         frequencies_for(self, x_BTHD, length, row), self.options)
      y = row > 1 and private.replace(y, turned) or turned
   end
   return y
end
private.note(Rope.apply)

-- Returns q and k turned by one row of positions. opts: of tide.rope_joined.
local function turned(self, q, k, positions, length, row, opts)
   local list = require('tide').rope_joined({ q, k }, positions,
      frequencies_for(self, q, length, row), opts)
   return list[1], list[2]
end

-- Returns the results of apply for q and for k of one batch and sequence, in one pass a row unless
-- apply was replaced. reuse: the results take the memory of q and k.
function Rope:apply_both(q, k, positions, length, reuse)
   check_tensors('apply_both', 'q', q, positions)
   local apply = self.apply
   if apply ~= Rope.apply then
      return private.call(apply, self, q, positions, length),
         private.call(apply, self, k, positions, length)
   end
   local opts = copy(self.options, { reuse = reuse })
   if positions.ndim ~= 3 then return turned(self, q, k, positions, length, nil, opts) end
   check_rows(self, 'apply_both', positions)
   local a, b = turned(self, q, k, positions:select(1, 1), length, 1, opts)
   for row = 2, self.row_count do
      local c, d = turned(self, a, b, positions:select(1, row), length, row, opts)
      a, b = private.replace(a, c), private.replace(b, d)
   end
   return a, b
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

-- Returns the length of the sequence whose positions these are, in one row or several, on one rank
-- or those of comm; nil where frequencies do not depend on it. Waits for the device.
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
   'axes: integer? >= 2 -- rows of positions, each of which turns an equal share of the channels',
   'where axes == nil or scaling == nil -- axes and scaling: give one of them',
   'where axes == nil or dim % (2 * axes) == 0 -- dim ({dim}) must be a multiple of {2 * axes}, a '
      .. 'pair of channels for each axis',
   'interleaved: boolean = false -- pairs lie side by side' } } })
