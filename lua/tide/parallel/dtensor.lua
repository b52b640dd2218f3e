-- DTensor: one tensor that lies on a mesh, and its way from one placement to another.
--
--    local w = tide.parallel.distribute(t, mesh, { tp = Shard(1) })
--    w.part, w.shape, w.placements            -- this rank's piece, the whole shape
--    w:redistribute { tp = Replicate() }      -- its steps: print(w:plan { tp = Replicate() })
--
-- A DTensor is a record. It computes nothing by itself and overloads no operator;
-- redistribute runs a plan (placement.lua) with differentiable collectives. Gradients follow the
-- convention "counted once": what is replicated has the same gradient on every rank, and so has
-- every rank's share of a Partial.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local private = require 'tide.util.private'
local collective = require 'tide.parallel.collective_op'
local placement = require 'tide.parallel.placement'

local dtensor = {}

local DTensor = { class_name = 'DTensor' }
DTensor.__index = DTensor
dtensor.DTensor = DTensor

local function new(part, mesh, placements, shape)
   return setmetatable({
      part = part, mesh = mesh, placements = placements, shape = shape,
   }, DTensor)
end

-- ---- the steps -------------------------------------------------------------------------------

local zeros_beside = private.func {
   name = 'parallel.keep_first',
   -- Keeps x on the first rank of the axis; the other ranks hold a value that changes nothing.
   forward = function(_, x, rank, neutral)
      if rank == 0 then return x end
      return tide.full(x.shape, neutral, { dtype = x.dtype, device = x.device })
   end,
   backward = function(_, dy) return dy end,
}

local times_size = private.func {
   name = 'parallel.as_mean',
   forward = function(self, x, n)
      self.n = n
      return x
   end,
   backward = function(self, dy) return dy * self.n end,
}

local run = {}

function run.slice(x, s) return collective.scatter_to(x, s.axis, s.to.dim, s.counts) end
function run.all_gather(x, s) return collective.gather_from(x, s.axis, s.from.dim, s.counts) end
function run.all_reduce(x, s) return collective.reduce_from(x, s.axis, s.from.op) end
function run.reduce_scatter(x, s)
   return collective.reduce_scatter_v(x, s.axis, s.to.dim, s.counts, s.from.op)
end
function run.all_to_all(x, s)
   return collective.all_to_all(x, s.axis, s.to.dim, s.from.dim, s.counts, s.join_counts)
end
function run.keep_first(x, s)
   err.raise_if(s.to.op == 'prod' and tide.is_grad_enabled() and x.requires_grad, 'E_UNSUPPORTED',
      'parallel.redistribute', "'prod' over ranks has no derivative " .. 'here; detach the input')
   return zeros_beside(x, s.rank, s.to.op == 'sum' and 0 or 1)
end
function run.rename(x, s)
   if s.to.kind == 'partial' and s.to.op == 'mean' and s.axis.size > 1 then
      return times_size(x, s.axis.size)
   end
   return x
end
function run.place(x, s)
   local n, d = #s.after, s.from.dim
   return x:pad(dims.only(n, d, s.offset), dims.only(n, d, s.after[d] - s.before[d] - s.offset))
end
run.all_gather_v, run.reduce_scatter_v = run.all_gather, run.reduce_scatter
run.all_to_all_v = run.all_to_all

-- ---- making them -----------------------------------------------------------------------------

-- Returns n placements that replicate.
local function all_whole(n)
   local list = {}
   for i = 1, n do list[i] = placement.replicate() end
   return list
end

-- Distributes a tensor that every rank holds whole: each rank keeps a copy of its piece. With
-- opts.root, that rank of the mesh has the values, and t on the other ranks only gives shape and
-- dtype. Without it, nothing is communicated.
function dtensor.distribute(t, mesh, placements, opts)
   local name = 'parallel.distribute'
   signature.check(name, 't', t, 'tensor')
   opts = err.options(name, opts, { 'root' })
   local list = placement.normalise(name, placements, mesh, t.ndim)
   if opts.root then
      local at = mesh:coord(err.integer(name, 'root', opts.root, 0, mesh:size() - 1))
      for i = #mesh.axes, 1, -1 do
         local axis = mesh.axes[i]
         t = collective.broadcast(t, axis, at[axis.name])
      end
   end
   return new(t, mesh, all_whole(#list), t.shape):redistribute(list)
end

-- Returns the whole shape from what the ranks hold: sizes add up over the axes that cut a dim.
local function whole_shape(part, mesh, list)
   local shape = part.shape
   for i = #list, 1, -1 do
      local p = list[i]
      if p.kind == 'shard' then
         shape[p.dim] = dims.sum(collective.counts(shape[p.dim], mesh.axes[i]))
      end
   end
   return shape
end

-- Makes a DTensor of this rank's piece. shape: of the whole; nil: the ranks exchange their sizes.
function dtensor.from_local(part, mesh, placements, shape)
   local name = 'parallel.from_local'
   signature.check(name, 't', part, 'tensor')
   local list = placement.normalise(name, placements, mesh, part.ndim)
   shape = shape or whole_shape(part, mesh, list)
   local expected = placement.local_shape(shape, list, mesh)
   if dims.text(expected) ~= dims.text(part.shape) then
      err.raise('E_SHAPE', name, "argument 't': rank %d of a %s tensor with %s on %s holds %s, got "
         .. '%s', mesh.rank, dims.text(shape), placement.text(list, mesh), tostring(mesh),
         dims.text(expected), dims.text(part.shape))
   end
   return new(part, mesh, list, { unpack(shape) })
end

-- ---- methods ---------------------------------------------------------------------------------

-- Returns the steps that redistribute would take, with their price; see placement.route.
function DTensor:plan(placements)
   return placement.route(self.shape, self.part.dtype, self.mesh, self.placements, placements)
end

-- Returns this tensor in other placements, as a new DTensor. Collective when the plan says so.
function DTensor:redistribute(placements)
   local list = placement.normalise('parallel.redistribute', placements, self.mesh, #self.shape)
   local plan, part = self:plan(list), self.part
   for _, step in ipairs(plan.steps) do part = run[step.action](part, step) end
   return new(part, self.mesh, list, self.shape)
end

-- Returns the whole tensor on every rank.
function DTensor:full_tensor()
   return self:redistribute(all_whole(#self.placements)).part
end

-- Returns this rank's piece, not a copy.
function DTensor:to_local() return self.part end

-- Returns how many elements lie before this rank's piece, along each dim.
function DTensor:offset()
   local _, offset = placement.local_shape(self.shape, self.placements, self.mesh)
   return offset
end

function DTensor:__tostring()
   return ('DTensor %s %s, %s; here %s'):format(dims.text(self.shape), self.part.dtype,
      placement.text(self.placements, self.mesh), dims.text(self.part.shape))
end

return dtensor
