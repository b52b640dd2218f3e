-- Mesh: the ranks of a communicator arranged along named axes.
--
--    local mesh = tide.parallel.mesh { dp = 2, cp = -1 }
--    mesh:axis('dp')              -- { name = 'dp', size = 2, rank = .., comm = .. }
--    mesh:flatten { 'dp', 'cp' }  -- the axis 'dp_cp', made once and kept
--
-- An axis is a communicator with a name. Ranks lie row-major, the last axis fastest,
-- so a rank's coordinates are the digits of its number, and an axis holds the ranks that differ in
-- that digit alone. A flattened axis is the same with several digits, row-major again.
--
-- Invariants: making a mesh, flattening and unflattening are collective, every rank calls them in
-- the same order; looking up is not. An axis costs one split when it is made; an axis of all ranks
-- is the communicator itself, and axes of one rank share one. On a simulated communicator axes are
-- simulated too. Coordinates and ranks count from 0.

local agree = require 'tide.comm.agree'
local dims = require 'tide.util.dims'
local dist = require 'tide.comm'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local near = require 'tide.util.near'
local subgroup = require 'tide.parallel.subgroup'
local sorted_keys = require('tide.util.pretty').sorted_keys

local mesh = {}

local canonical = { 'pp', 'dp_replicate', 'dp_shard', 'dp', 'cp', 'tp' }
-- Names for several axes, used where the mesh has no axis of that name.
local helper = {
   dp = { 'dp_replicate', 'dp_shard' }, dp_shard_cp = { 'dp_shard', 'cp' }, dp_cp = { 'dp', 'cp' },
}

local Mesh, Axis = { class_name = 'Mesh' }, { class_name = 'Axis' }
Mesh.__index, Axis.__index = Mesh, Axis

local function join(list, fmt, sep)
   local out = {}
   for i, a in ipairs(list) do out[i] = fmt:format(a.name, a.size) end
   return table.concat(out, sep)
end

-- Returns axis sizes as text: "dp 2 x cp 4".
local function product_text(list) return join(list, '%s %d', ' x ') end

-- Returns the ranks of all axes of a list { size = .. }.
local function product(list)
   local n = 1
   for _, a in ipairs(list) do n = n * a.size end
   return n
end

mesh._product = product

-- ---- sizes -----------------------------------------------------------------------------------

local function check_size(op, name, size)
   err.arg_if(type(size) ~= 'number' or size ~= math.floor(size) or size > 2^31 or not (size >= 1
      or size == -1), op, name, 'a positive integer, or -1 for the remaining ranks', size)
   return size
end

local function check_name(op, name)
   err.arg_if(type(name) ~= 'string' or not name:find '^%a[%w_]*$', op, 'axes',
      "names made of letters, digits and '_'", name)
   return name
end

local function from_list(op, axes)
   local list, seen = {}, {}
   for key in each(axes) do
      err.raise_if(type(key) ~= 'number', 'E_ARG', op, "argument 'axes': got a list with the key "
         .. "'%s'; write either {{'dp', 2}, {'cp', 2}} or {dp = 2, cp = 2}", tostring(key))
   end
   for i, pair in ipairs(axes) do
      err.arg_if(type(pair) ~= 'table' or #pair ~= 2, op, ('axes[%d]'):format(i), 'a name and a '
         .. "size, as {'dp', 2}", pair)
      local name = check_name(op, pair[1])
      err.raise_if(seen[name], 'E_ARG', op, "argument 'axes': the name '%s' is given twice", name)
      seen[name] = true
      list[i] = { name = name, size = check_size(op, name, pair[2]) }
   end
   return list
end

local factors_fit = signature.options {
   'where dp % given == 0 -- dp ({dp}) must be divisible by {name} ({given})',
   'where r * s == dp -- dp_replicate ({r}) x dp_shard ({s}) must equal dp ({dp})',
   'where r == 1 or r < dp -- dp_replicate ({r}) must be 1 or smaller than dp ({dp}); for plain '
      .. 'data parallelism give dp alone',
}

-- Returns the two factors of a given dp, checked; one of them may be nil or -1.
local function split_dp(op, dp, replicate, shard)
   if replicate == -1 then replicate = nil end
   if shard == -1 then shard = nil end
   local r, s = replicate or dp / shard, shard or dp / replicate
   factors_fit(op, {}, { dp = dp, r = r, s = s, given = replicate or shard,
      name = replicate and 'dp_replicate' or 'dp_shard' })
   return r, s
end

local function from_map(op, axes)
   local list = {}
   for name, size in each(axes) do
      if type(name) ~= 'string' then err.arg(op, 'axes', 'a list or a map of sizes', axes) end
      local known = false
      for _, k in ipairs(canonical) do known = known or k == name end
      if not known then
         err.raise_if(name == 'ep', 'E_ARG', op, "argument 'axes': expert parallelism has no axis "
            .. 'of its own; give fully_shard the option ep_size (--mesh.ep of the recipes)')
         err.raise('E_ARG', op, "argument 'axes': no place is known for '%s' in {name = size}%s; "
            .. "other names need a list: {{'%s', ...}, ...}", name, near.hint(name, canonical),
            name)
      end
      check_size(op, name, size)
   end
   for _, name in ipairs(canonical) do
      if axes[name] then list[#list + 1] = { name = name, size = axes[name] } end
   end
   return list
end

-- Sets the one size that is -1 to the rest of n ranks; the product must be n.
local function infer(op, list, n, whole)
   local open, rest = nil, {}
   for _, a in ipairs(list) do
      if a.size ~= -1 then
         rest[#rest + 1] = a
      elseif open then
         err.raise('E_ARG', op, "only one size can be -1, but '%s' and '%s' are", open.name, a.name)
      else
         open = a
      end
   end
   local fixed = product(rest)
   if open then
      if n % fixed ~= 0 then
         err.raise('E_ARG', op, "cannot infer '%s': %s (%d) must be divisible by %s", open.name,
            whole, n, #rest > 1 and product_text(rest) .. ' = ' .. fixed or product_text(rest))
      end
      open.size = n / fixed
   elseif fixed ~= n then
      err.raise('E_ARG', op, 'the product of the axes, %s%s, must equal %s (%d)',
         product_text(list), #list > 1 and ' = ' .. fixed or '', whole, n)
   end
   return list
end

-- Checks a map that gives dp together with one or both of its factors.
local function hybrid(op, list, n, whole)
   local at = {}
   for i, a in ipairs(list) do at[a.name] = i end
   local replicate, shard = list[at.dp_replicate], list[at.dp_shard]
   local open, others = 0, {}
   for _, a in ipairs(list) do
      if a.size == -1 then open = open + 1 end
      if a ~= replicate and a ~= shard then others[#others + 1] = a end
   end
   if open > 1 then err.raise('E_ARG', op, 'only one size can be -1, but %d are', open) end
   if not (replicate and replicate.size > 0 or shard and shard.size > 0) then
      local free = replicate or shard          -- the other factor is not given: it is 1
      free.size = list[at.dp].size
   end
   infer(op, others, n, whole)
   local r, s = split_dp(op, list[at.dp].size, replicate and replicate.size, shard and shard.size)
   local out = {}
   for _, a in ipairs(others) do
      if a.name ~= 'dp' then
         out[#out + 1] = a
      else
         out[#out + 1] = { name = 'dp_replicate', size = r }
         out[#out + 1] = { name = 'dp_shard', size = s }
      end
   end
   return out
end

-- Returns the axes, outermost first, as a list of { name, size } whose product is n.
local function sizes_of(op, axes, n, whole)
   err.type(op, 'axes', axes, 'table')
   if next(axes) == nil then err.arg(op, 'axes', 'at least one axis', axes) end
   if #axes > 0 then return infer(op, from_list(op, axes), n, whole) end
   local list = from_map(op, axes)
   if axes.dp and (axes.dp_replicate or axes.dp_shard) then return hybrid(op, list, n, whole) end
   return infer(op, list, n, whole)
end

-- Returns the sizes that mesh.new would take for a run of n ranks: a list of { name, size }.
function mesh.sizes(axes, n)
   return sizes_of('parallel.mesh', axes, n, 'the number of ranks')
end

-- ---- coordinates -----------------------------------------------------------------------------

local function set_places(list)
   local stride = 1
   for i = #list, 1, -1 do
      list[i].stride, list[i].place = stride, i
      stride = stride * list[i].size
   end
end

-- Returns the number of a rank along several parts, row-major, and the rank with those digits 0.
local function along(rank, parts)
   local index, origin = 0, rank
   for _, p in ipairs(parts) do
      local d = math.floor(rank / p.stride) % p.size
      index, origin = index * p.size + d, origin - d * p.stride
   end
   return index, origin
end

-- Returns the ranks of the line through `rank` along parts, in order.
local function line(rank, parts)
   local _, origin = along(rank, parts)
   local list = { origin }
   for _, p in ipairs(parts) do
      local wide = {}
      for _, r in ipairs(list) do
         for d = 0, p.size - 1 do wide[#wide + 1] = r + d * p.stride end
      end
      list = wide
   end
   return list
end

-- ---- communicators ---------------------------------------------------------------------------

-- Returns the communicator of the ranks that differ along parts only. Parts of one rank do not
-- count.
local function comm_for(root, op, parts, name)
   local wide, key = {}, {}
   for _, p in ipairs(parts) do
      if p.size > 1 then
         wide[#wide + 1] = p
         key[#key + 1] = p.name
      end
   end
   local size = product(wide)
   if size == root.comm.size then return root.comm end
   key = table.concat(key, ' ')
   local comm = root.comms[key]
   if comm then return comm end
   local index, origin = along(root.rank, wide)
   if root.comm.transport == 'sim' then
      comm = dist.simulate(size, index, subgroup.neighbours(line(root.rank, wide), root.host_size))
   else
      name = size > 1 and name or 'one'
      comm = root.comm:split(origin, index, name)
      err.raise_if(comm.size ~= size or comm.rank ~= index, 'E_COMM', op, "axis '%s': expected "
         .. 'rank %d of %d, got rank %d of %d; the ranks have asked for different axes', name,
         index, size, comm.rank, comm.size)
   end
   root.comms[key] = comm
   return comm
end

local function new_axis(root, op, name, parts)
   return setmetatable({
      name = name, size = product(parts), rank = (along(root.rank, parts)),
      comm = comm_for(root, op, parts, name), parts = parts, root = root,
   }, Axis)
end

-- Returns the ranks of the run (numbers in the outermost mesh) along the axis through this rank, in
-- order.
function Axis:ranks()
   local list, outer = line(self.root.rank, self.parts), self.root.outer
   if outer then
      for i, r in ipairs(list) do list[i] = outer[r + 1] end
   end
   return list
end

function Axis:__tostring()
   return ("axis '%s' (rank %d of %d)"):format(self.name, self.rank, self.size)
end

-- ---- the mesh --------------------------------------------------------------------------------

local function build(op, axes, opts, whole, outer)
   local comm = opts.comm or dist.world()
   local list = sizes_of(op, axes, comm.size, whole)
   agree.check(comm, op, 'E_COMM', { { 'meshes', join(list, '%s=%d', ' '), 'shown',
      hint = 'the ranks ask for different meshes' } })
   set_places(list)
   local host = opts.host_size or comm.host_size or comm.size
   local self = setmetatable({
      comm = comm, rank = comm.rank, base = list, axes = {}, by_name = {}, flat = {}, comms = {},
      host_size = host, outer = outer,
   }, Mesh)
   self.root = self
   for i, part in ipairs(list) do
      self.axes[i] = new_axis(self, op, part.name, { part })
      self.by_name[part.name] = self.axes[i]
   end
   return self
end

-- Arranges the ranks of comm along axes. axes: a list { { 'dp', 2 }, { 'cp', 2 } } in any order and
-- with any names, the last one fastest, or a map { dp = 2, cp = 2 } of the known names in the order
-- pp, dp_replicate, dp_shard, dp, cp, tp. `dp` beside dp_replicate or dp_shard is the product of
-- the two. One size may be -1: the ranks that are left. Collective.
function mesh.new(axes, opts) return build('parallel.mesh', axes, opts, 'the number of ranks') end

-- Returns the axis of that name, or a flattened one that has been made; nil without one.
function Mesh:find(name) return self.by_name[name] or self.root.flat[name] end

-- Returns whether a name means axes that this mesh has.
local is_helper
function is_helper(self, name)
   for _, part in ipairs(helper[name] or {}) do
      if not self:find(part) and not is_helper(self, part) then return false end
   end
   return helper[name] ~= nil
end

local function no_axis(self, op, name)
   local have = {}
   for i, a in ipairs(self.axes) do have[i] = a.name end
   for _, known in ipairs(sorted_keys(self.root.flat)) do have[#have + 1] = known end
   local list = table.concat(have, ', ')
   if is_helper(self, name) then
      err.raise('E_ARG', op, "no axis '%s' in this mesh (%s); mesh:flatten '%s' makes it of %s",
         name, list, name, table.concat(helper[name], ' and '))
   end
   err.raise('E_ARG', op, "no axis '%s' in this mesh (%s)%s", tostring(name), list,
      near.best(tostring(name), have) and near.hint(tostring(name), have) or '')
end

-- Returns the axis of that name; raises without one. Communicates nothing.
function Mesh:axis(name) return self:find(name) or no_axis(self, 'parallel.mesh.axis', name) end

-- Returns the communicator of an axis.
function Mesh:comm_of(name) return self:axis(name).comm end

-- Returns the number of ranks of the mesh, or of one axis.
function Mesh:size(name)
   if name == nil then return product(self.axes) end
   return self:axis(name).size
end

-- Returns the coordinates, by axis name, of this rank or of a rank of the mesh.
function Mesh:coord(rank)
   local at, left = {}, rank == nil and self.rank
      or err.integer('parallel.mesh.coord', 'rank', rank, 0, self:size() - 1)
   for i = #self.axes, 1, -1 do
      local a = self.axes[i]
      at[a.name] = left % a.size
      left = math.floor(left / a.size)
   end
   return at
end

-- Returns the rank of the mesh with these coordinates; axes that are not named: this rank's own.
function Mesh:rank_of(at)
   local op, rank = 'parallel.mesh.rank_of', 0
   for name in each(at) do
      if not self.by_name[name] then no_axis(self, op, name) end
   end
   for _, a in ipairs(self.axes) do
      local d = at[a.name] == nil and a.rank or err.integer(op, a.name, at[a.name], 0, a.size - 1)
      rank = rank * a.size + d
   end
   return rank
end

-- ---- flattened axes --------------------------------------------------------------------------

-- Appends the parts that a name means.
local function expand(self, op, name, parts)
   local axis = self:find(name)
   if axis then
      for _, p in ipairs(axis.parts) do parts[#parts + 1] = p end
   elseif is_helper(self, name) then
      for _, part in ipairs(helper[name]) do expand(self, op, part, parts) end
   else
      no_axis(self, op, name)
   end
end

local function check_order(self, op, parts)
   for i = 2, #parts do
      if parts[i].place <= parts[i - 1].place then
         err.raise('E_ARG', op, "'%s' after '%s': axes must be given once each, in the order of "
            .. 'the mesh (%s)', parts[i].name, parts[i - 1].name,
            join(self.root.base, '%s', ', '))
      end
   end
end

-- Returns one axis of several, row-major: flatten{'dp', 'cp'} is 'dp_cp' (or `name`). Names of
-- flattened axes may be in the list, and dp, dp_cp and dp_shard_cp mean the axes that they are made
-- of. Made at the first call, which every rank must make; later calls return the same.
function Mesh:flatten(names, name)
   local op, parts = 'parallel.mesh.flatten', {}
   if type(names) == 'string' then names = { names } end
   err.type(op, 'names', names, 'table')
   if #names == 0 then err.arg(op, 'names', 'at least one name', names) end
   for _, n in ipairs(names) do expand(self, op, n, parts) end
   check_order(self, op, parts)
   name = check_name(op, name or table.concat(names, '_'))
   local known = self:find(name)
   if known then
      if dims.equal(known.parts, parts) then return known end
      err.raise('E_ARG', op, "the name '%s' is taken by another axis of this mesh; give a second "
         .. 'argument', name)
   end
   local axis = new_axis(self.root, op, name, parts)
   self.root.flat[name] = axis
   return axis
end

-- ---- other views of the same ranks -----------------------------------------------------------

-- Returns a mesh of some axes, flattened ones included: mesh:sub{'dp_replicate', 'dp_shard_cp'}.
-- Holds the same communicators. Its comm, for all its ranks, is that of the axes flattened, if they
-- are.
function Mesh:sub(names)
   local op = 'parallel.mesh.sub'
   local view = setmetatable({ axes = {}, by_name = {}, root = self.root, rank = 0 }, Mesh)
   local parts = {}
   for i, name in ipairs(names) do
      local axis = self:find(name) or no_axis(self, op, name)
      view.axes[i], view.by_name[axis.name] = axis, axis
      view.rank = view.rank * axis.size + axis.rank
      for _, p in ipairs(axis.parts) do parts[#parts + 1] = p end
   end
   check_order(self, op, parts)
   for _, axis in each(self.root.flat) do
      if dims.equal(axis.parts, parts) then view.comm = axis.comm end
   end
   if #parts == #self.root.base then view.comm = self.root.comm end
   if #view.axes == 1 then view.comm = view.axes[1].comm end
   return view
end

-- Returns a mesh of the ranks along one axis: unflatten('cp', {{'ring', 2}, {'ulysses', -1}}).
-- Collective.
function Mesh:unflatten(name, axes)
   local op, axis = 'parallel.mesh.unflatten', self:axis(name)
   return build(op, axes, { comm = axis.comm }, ("the size of '%s'"):format(name), axis:ranks())
end

-- Returns the expert mesh on the same ranks: (pp,) ep_shard, ep, where ep_shard is what is left of
-- all axes but pp. Collective.
function Mesh:expert(ep)
   local op, root = 'parallel.mesh.expert', self.root
   local pp = root.by_name.pp
   err.raise_if(pp and root.axes[1] ~= pp, 'E_ARG', op, "the axis 'pp' must be the outermost, it "
      .. 'is not in %s', tostring(root))
   local axes = { { 'ep_shard', -1 }, { 'ep', ep } }
   if pp then table.insert(axes, 1, { 'pp', pp.size }) end
   return build(op, axes, { comm = root.comm, host_size = root.host_size }, 'the number of ranks',
      root.outer)
end

-- Returns the axes that parameters are sharded over, as a mesh of one axis, or of two when there
-- are replicas: dp_shard (or dp), flattened with cp if cp is larger than 1. Collective.
function Mesh:fsdp_mesh()
   local op = 'parallel.mesh.fsdp_mesh'
   local replicate, cp = self.by_name.dp_replicate, self.by_name.cp
   local shard = self.by_name.dp_shard or self.by_name.dp
   err.raise_if(not shard, 'E_ARG', op, "no axis 'dp_shard' or 'dp' in this mesh (%s), over which "
      .. "parameters are sharded; add one, { 'dp', 1 } if there are no such ranks",
      join(self.axes, '%s', ', '))
   if cp and cp.size > 1 then shard = self:flatten { shard.name, 'cp' } end
   if replicate and replicate.size > 1 then return self:sub { 'dp_replicate', shard.name } end
   return self:sub { shard.name }
end

-- ---- the rest --------------------------------------------------------------------------------

-- Leaves the communicators of all axes; the one the mesh was made on stays.
function Mesh:close()
   local root = self.root
   for _, comm in each(root.comms) do comm:close() end
   root.comms = {}
end

function Mesh:__tostring()
   local here = {}
   for i, a in ipairs(self.axes) do here[i] = a.name .. ' ' .. a.rank end
   return ('mesh %s (%d ranks; this is rank %d: %s)'):format(join(self.axes, '%s=%d', ' x '),
      self:size(), self.rank, table.concat(here, ', '))
end

mesh.Mesh, mesh.Axis = Mesh, Axis

signature.record('mesh_comm', 'a communicator', { 'size: integer >= 1', 'split: function' })
signature.doors('parallel.mesh', Mesh, {
   rank_of = 'at: table', expert = 'ep: integer in [1, 2147483648]',
   sub = { { 'names: table',
      "where #names > 0 -- argument 'names': expected at least one name, got {names}" } },
})
signature.doors('parallel.mesh', mesh, {
   sizes = { 'n: integer in [1, 2147483648]', op = 'parallel.mesh' },
   new = { op = 'parallel.mesh', opts = {
      'comm: mesh_comm? -- ranks; all of the run by default',
      'host_size: integer? in [1, 2147483648] -- simulated ranks that share a host' } },
})

return setmetatable(mesh, { calls = mesh.new, __call = function(_, ...) return mesh.new(...) end })
