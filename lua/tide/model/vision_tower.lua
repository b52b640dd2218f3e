-- What vision towers of published families share: the fields that they have in common, layers over
-- one stream of patches, and the checks of a call. Frames are documents of bidirectional attention.
--
-- A family's tower is a class derived from this one. It has
--    described   fields and rules of its configuration (see Tower._described), and op of its model
--    forward     (patches [N, P], grids): the features, one for each m x m patches
--    read, check_patches, patch_numel, cost, blank   methods below, or its own
-- Other files read these fields of its configuration: spatial_merge_size, patch_size and
-- temporal_patch_size; image_size (of images of one size) and deepstack_visual_indexes, or nil; and
-- tokens_per_second of a family with videos whose frames are not apart (see vision_decoder).
--
-- Names of parameters follow published files (visual.blocks.0.attn.qkv). Positions are rows and
-- columns, rotary ones of two axes.
-- Legend: N patches, P numbers of a patch, C width, O output width, m spatial_merge_size.

local tide = require 'tide'
local class = require 'tide.class'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local grid_ = require 'tide.model.vision_grid'
local nn = require 'tide.nn'
local private = require 'tide.util.private'
local published = require 'tide.model.published'
local signature = require 'tide.util.signature'
local tiles = require 'tide.nn.tiles'
local upload = require 'tide.util.upload'

local Module = nn.Module

-- ---- the configuration -------------------------------------------------------------------------

-- side and window: pixels, and patches or frames, at most as many as image processors take.
local count, side, window = 'integer >= 1', 'integer in [1, 1024]', 'integer in [1, 64]'

-- Fields of all towers, with the defaults of Qwen2.5-VL.
local common = {
   { 'depth', 32, count }, { 'hidden_size', 3584, count }, { 'num_heads', 16, count },
   { 'intermediate_size', 3420, count }, { 'in_channels', 3, count }, { 'patch_size', 14, side },
   { 'spatial_merge_size', 2, window }, { 'temporal_patch_size', 2, window },
   { 'out_hidden_size', published.optional, count },
   { 'initializer_range', 0.02, 'number >= 0' }, { 'rope_theta', 10000, 'number >= 1' },
}

-- Takes the base of the positions, which never differs, out of the table in which transformers 5
-- has it.
local function translate(f, problems)
   local rope = f.rope_parameters
   f.rope_parameters = nil
   if type(rope) ~= 'table' then return end
   if (rope.rope_type or 'axial') ~= 'axial' then
      problems[#problems + 1] = ("field 'rope_parameters.rope_type' is %s; only axial is supported")
         :format(err.show(rope.rope_type))
   end
   f.rope_theta = rope.rope_theta
end

-- The relation of fields that all towers need.
local heads_fit = 'where hidden_size % (4 * num_heads) == 0 -- hidden_size ({hidden_size}) must be '
   .. 'a multiple of {4 * num_heads}: heads of pairs of channels for rows and columns'

local Tower = class('VisionTower', Module)
Tower.holds_parts = true
Tower.mixes = false              -- frames lie whole on a rank, whatever tokens of a text it has

-- Returns the fields and rules of a family's tower, for Tower.read. how: op (of the text model),
-- types (values of model_type), fields (rows of its own), defaults (of common fields), free (names
-- of fields that change nothing), where (relations beside those of all), complete(c, op) or nil.
function Tower._described(how)
   local rows, own = {}, how.defaults or {}
   for _, row in ipairs(common) do
      rows[#rows + 1] = { row[1], own[row[1]] or row[2], row[3] }
   end
   for _, row in ipairs(how.fields) do rows[#rows + 1] = row end
   return { op = how.op, types = how.types, rows = rows, rules = {
      alias = { in_chans = 'in_channels', num_hidden_layers = 'depth',
         num_attention_heads = 'num_heads' },
      free = how.free, translate = translate, complete = how.complete,
      where = signature.options { heads_fit, unpack(how.where or {}) } } }
end

-- Returns the complete configuration of the tower of a text model this wide, and the names of
-- fields that change nothing. self: a class with `described`.
function Tower:read(config, width)
   local of = self.described
   local op, c = of.op, copy(err.type(of.op, 'vision_config', config, 'table'))
   if c.model_type ~= nil then
      err.choice(op, 'vision_config.model_type', c.model_type, of.types)
   end
   c.model_type, c.architectures = nil, nil
   local unused
   local problem = err.problem(function() c, unused = published.read(op, c, of.rows, of.rules) end)
   err.raise_if(problem, 'E_ARG', op, 'vision_config: %s', tostring(problem))
   c.out_hidden_size = c.out_hidden_size or width
   err.raise_if(c.out_hidden_size ~= width, 'E_ARG', op, 'vision_config.out_hidden_size (%d) must '
      .. 'be the hidden_size of the text model (%s)', c.out_hidden_size, tostring(width))
   return c, unused
end

-- ---- layers ------------------------------------------------------------------------------------

-- The embedding of patches. Published files have a convolution whose stride is its kernel size, so
-- it is a product of whole patches with one matrix.
local Patches = class('VisionPatches', Module)
Patches.mixes = false

-- Makes the layer of a complete configuration. opts.bias: whether it adds biases; opts.flat: the
-- kernel in files has no dim of frames.
function Patches:init(c, opts)
   Module.init(self)
   local p = c.patch_size
   local kernel = opts.flat and { p, p } or { c.temporal_patch_size, p, p }
   self:param('weight', { c.hidden_size, c.in_channels, unpack(kernel) },
      { kind = 'normal', std = c.initializer_range }, opts)
   if opts.bias then self:param('bias', { c.hidden_size }, 'zeros', opts) end
   self:ready(opts)
end

-- Returns the embeddings [N, C] of patches x [N, P].
function Patches:forward(x)
   x = x:to(self.weight.dtype)
   return tide.linear(x, self.weight:reshape(self.weight:size(1), x:size(2)), self.bias)
end
private.note(Patches.forward)

-- A module that only holds others.
local Group = class('VisionGroup', Module)
Group.mixes, Group.holds_parts = false, true

-- Makes a group. parts: a list of { name, module }.
function Group:init(parts)
   Module.init(self)
   for _, part in ipairs(parts) do self:child(part[1], part[2]) end
end

local Attention = class('VisionAttention', Module)
-- Patches see each other, and no tokens of a text: a rank of a context axis has its frames whole.
Attention.mixes, Attention.holds_parts = false, true

-- Makes the layer. rope: its positions; whole: it attends within frames, not within windows.
function Attention:init(c, opts, rope, whole)
   Module.init(self)
   local C = c.hidden_size
   self.heads, self.head_dim, self.rope, self.whole = c.num_heads, C / c.num_heads, rope, whole
   self:child('qkv', nn.Linear(C, 3 * C, Module.inner(opts, { std = c.initializer_range })))
   self:child('proj', nn.Linear(C, C, Module.inner(opts, { std = c.initializer_range })))
end

-- Returns the output [1, N, C] of x of the same shape. at: positions [2, 1, N], frames and windows
-- (index tensors, nil where all see all), tiles.
function Attention:forward(x, at)
   local H, D, n, C = self.heads, self.head_dim, x:size(2), x:size(3)
   local all = self.qkv(x)
   local q, k, v = unpack(private.replace(all, all:split({ C, C, C }, -1)))
   q = private.replace(q, q:reshape(1, n, H, D))
   k = private.replace(k, k:reshape(1, n, H, D))
   v = private.replace(v, v:reshape(1, n, H, D))
   local a, b = private.call(self.rope.apply_both, self.rope, q, k, at.positions)
   private.spend(q, k)
   local index = self.whole and at.frames or not self.whole and at.windows or nil
   local y = tide.attention(a, b, v,
      tiles.put({ causal = false, q_index = index, k_index = index }, at.tiles))
   private.spend(a, b, v)
   y = private.replace(y, y:reshape(1, n, C))
   return private.replace(y, self.proj(y))
end
private.note(Attention.forward)

-- ---- the tower ---------------------------------------------------------------------------------

-- Begins a tower of a complete configuration, with the embedding of patches. opts: as of every
-- module; bias: whether that embedding adds biases. Returns the options of further parts: products
-- of a tower are never in FP8, since published sizes (3420, 4304) are no multiples of a block.
function Tower:_begin(c, opts, bias)
   Module.init(self)
   opts = copy(opts)
   opts.fp8, self.config = nil, c
   self:child('patch_embed', Group { { 'proj', Patches(c, Module.inner(opts, { bias = bias })) } })
   return opts
end

-- Returns the rotary positions of a complete configuration.
function Tower:_rope()
   local c = self.config
   return nn.rope.new { dim = c.hidden_size / c.num_heads, theta = c.rope_theta, axes = 2 }
end

-- Returns a tensor of a list on a device.
function Tower._tensor(list, dtype, device)
   return upload(function(here) return tide.tensor(list, { dtype = dtype, device = here }) end,
      device)
end

-- Returns the work of a frame of a grid, in products of a patch with a channel: the layers take 4 C
-- + 2 F a patch, of which an MLP has F inner ones, and attention as much as there are patches.
function Tower:cost(g)
   local c, n = self.config, g[2] * g[3]
   return n * (4 * c.hidden_size + 2 * c.intermediate_size + 2 * n)
end

-- Returns the numbers of a patch.
function Tower:patch_numel()
   local c = self.config
   return c.in_channels * c.temporal_patch_size * c.patch_size ^ 2
end

-- Raises unless patches [N, P] are those of the grids. name: of the argument.
function Tower:check_patches(name, patches, grids)
   local n, P, op = grid_.patches(grids), self:patch_numel(), self.described.op
   err.arg_if(not tide.is_tensor(patches), op, name, 'a tensor [N, P]', patches)
   err.raise_if(n == 0, 'E_ARG', op, '%s: expected patches of at least one image, got none; leave '
      .. 'images out of a call without any', name)
   err.raise_if(patches.ndim ~= 2 or patches:size(1) ~= n or patches:size(2) ~= P, 'E_SHAPE', op,
      '%s: the grids have %d patches of %d numbers (in_channels temporal_patch_size patch_size^2), '
      .. 'got [%s]', name, n, P, table.concat(patches.shape, ', '))
end

-- Returns grids as a list, of patches that are theirs; raises if they are not.
function Tower:_checked(patches, grids)
   grids = grid_.read(self.described.op, 'grids', grids, self.config.spatial_merge_size)
   self:check_patches('patches', patches, grids)
   return grids
end

-- Returns a stream of zeros and its grid, the smallest image, like a tensor of patches: for ranks
-- without images, where the tower runs with that of others.
function Tower:blank(like)
   local m = self.config.spatial_merge_size
   return tide.zeros({ m * m, self:patch_numel() }, { dtype = like.dtype, device = like.device }),
      { { 1, m, m } }
end

Tower._Attention, Tower._Group, Tower._Patches = Attention, Group, Patches

return Tower
