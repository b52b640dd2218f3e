-- The global norm of gradients over any placement, and clipping by it.
--
-- Gradients are given in groups { grads =, comms = }, where comms are the communicators
-- along which *different* parts lie. A group's sum of powers is summed over its comms and over
-- nothing else, so an element that many ranks hold counts once. Every rank has the same groups,
-- with perhaps no gradient in them. Ranks of different stages of a pipeline may have other groups:
-- the field `stages` of the list is the communicator along which the stages lie. Ranks of its field
-- `alike` may have added up the same elements in another order, and take the largest of their sums.
--
-- clip_grad_norm_ scales in place, whatever the dtype, by max_norm / (norm + 1e-6) if that is < 1.

local tide = require 'tide'
local dist = require 'tide.comm'
local err = require 'tide.util.err'
local update = tide.update

local clip = {}

local said = 'a list of gradients (optim:grads()), of groups, or the Sharded of a sharded model'

-- Refuses modules and parameters: clipping scales what it is given.
local function check_gradients(op, list)
   if type(list.walk) == 'function' then err.arg(op, 'grads', said, list) end
   for i, g in ipairs(list) do
      local name = ('grads[%d]'):format(i)
      if not tide.is_tensor(g) then err.arg(op, name, 'a tensor', g) end
      err.raise_if(g.requires_grad, 'E_ARG', op, "argument '%s': expected a gradient, got a "
         .. 'parameter (it requires a gradient); give %s', name, said)
   end
end

-- Returns the groups from a Sharded, a list of groups, or a list of tensors (with comm, if they are
-- parts).
local function groups_of(op, source, comm)
   err.type(op, 'grads', source, 'table')
   if source.norm_groups then
      source:check_finished(op)
      return source:norm_groups()
   end
   if source[1] ~= nil and type(source[1]) == 'table' and source[1].grads then return source end
   check_gradients(op, source)
   return { { grads = source, comms = { comm ~= nil and dist.comm_of(op, comm) or nil } } }
end

-- Returns where the parts of the norm lie on every rank, also on one that has no gradient of a
-- group: that of the gradients, or of NCCL's communicator; nil: unknown.
local function device_of(groups)
   local over_nccl
   for _, group in ipairs(groups) do
      if group.device then return group.device end
      if group.grads[1] then return group.grads[1].device end
      for _, c in ipairs(group.comms) do over_nccl = over_nccl or c.transport == 'nccl' end
   end
   return over_nccl and 'cuda' or nil
end

-- Returns the sum of |x|^p of a list (the largest |x| for infinity): f64 where a tensor is, else
-- f32.
local function local_part(grads, p, device)
   if #grads == 0 then return tide.zeros({}, { dtype = 'f64', device = device }) end
   if p == math.huge then return update.norm(grads, p) end
   if p == 1 or p == 2 then return update.norm(grads, p, true) end
   local sum = tide.zeros({}, { dtype = 'f64', device = device })
   for _, g in ipairs(grads) do
      local wide = g.dtype == 'f64' and g or g:to 'f32'
      sum = sum + wide:abs():pow(p):sum():to 'f64'
   end
   return sum
end

-- Returns the norm as an f64 scalar, the same on every rank, also where a rank holds no part.
-- source: a Sharded, a list of groups, or a list of tensors with comm. norm_type: 2 (default), 1,
-- any p >= 1, math.huge.
function clip.norm(source, norm_type, comm)
   local op, p = 'parallel.clip.norm', norm_type
   if p == nil then p = 2 end
   err.arg_if(type(p) ~= 'number' or p ~= p or p < 1, op, 'norm_type',
      'a number >= 1, or math.huge', p)
   return tide.no_grad(function()
      local total
      local groups = groups_of(op, source, comm)
      local device = device_of(groups)
      for _, group in ipairs(groups) do
         local part = local_part(group.grads, p, device):to 'f64'
         for _, c in ipairs(group.comms) do
            if c.size > 1 then c:all_reduce(part, p == math.huge and 'max' or 'sum') end
         end
         total = not total and part or p == math.huge and tide.maximum(total, part) or total + part
      end
      total = total or local_part({}, p, device)
      if groups.stages then groups.stages:all_reduce(total, p == math.huge and 'max' or 'sum') end
      if groups.alike then groups.alike:all_reduce(total, 'max') end
      if p == math.huge or p == 1 then return total end
      return p == 2 and total:sqrt() or total:pow(1 / p)
   end)
end

-- Scales gradients in place so that their global norm is at most max_norm. Returns the norm before.
-- opts: norm_type, comm.
function clip.clip_grad_norm_(source, max_norm, opts)
   local op = 'parallel.clip_grad_norm_'
   err.number(op, 'max_norm', max_norm, 0)
   opts = err.options(op, opts, { 'norm_type', 'comm' })
   local groups = groups_of(op, source, opts.comm)
   local norm = clip.norm(groups, opts.norm_type)
   if max_norm == 0 then
      for _, group in ipairs(groups) do
         for _, g in ipairs(group.grads) do g:zero_() end
      end
      return norm
   end
   local factor = update.clip_factor(norm, max_norm)
   for _, group in ipairs(groups) do
      update.scale_all_(group.grads, factor)
   end
   return norm
end

return clip
