-- The vision tower of Qwen2.5-VL: patches of images and frames, packed in one stream, to features
-- of the width of the language model. Names follow published files (visual.blocks.0.attn.qkv).
--
-- Each frame is a document of bidirectional attention; blocks that fullatt_block_indexes does not
-- name attend within windows of window_size pixels. Patches are put in the order of the windows, so
-- that frames and windows are both runs of patches; the features come back in the order of the
-- patches. Positions are rows and columns, rotary ones of two axes.
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

local op = 'model.qwen2_5_vl'

-- ---- the configuration -------------------------------------------------------------------------

local count = 'integer >= 1'

local rows = {
   { 'depth', 32, count }, { 'hidden_size', 3584, count }, { 'num_heads', 16, count },
   { 'intermediate_size', 3420, count }, { 'in_channels', 3, count }, { 'patch_size', 14, count },
   { 'spatial_merge_size', 2, count }, { 'temporal_patch_size', 2, count },
   { 'tokens_per_second', 4, 'number > 0' }, { 'window_size', 112, count },
   { 'out_hidden_size', published.optional, count },
   { 'fullatt_block_indexes', { 7, 15, 23, 31 }, 'integer[] >= 0' },
   { 'hidden_act', 'silu', "'silu'" }, { 'initializer_range', 0.02, 'number >= 0' },
   { 'rope_theta', 10000, 'number >= 1' },
}

-- Takes the base of the positions, which never differs, out of the table in which transformers 5
-- has it.
local function translate(_, f, problems)
   local rope = f.rope_parameters
   f.rope_parameters = nil
   if type(rope) ~= 'table' then return end
   if (rope.rope_type or 'axial') ~= 'axial' then
      problems[#problems + 1] = ("field 'rope_parameters.rope_type' is %s; only axial is supported")
         :format(err.show(rope.rope_type))
   end
   f.rope_theta = rope.rope_theta
end

local rules = {
   alias = { in_chans = 'in_channels', num_hidden_layers = 'depth',
      num_attention_heads = 'num_heads' },
   free = 'spatial_patch_size', translate = translate,
   where = signature.options {
      'where hidden_size % (4 * num_heads) == 0 -- hidden_size ({hidden_size}) must be a multiple '
         .. 'of {4 * num_heads}: heads of pairs of channels for rows and columns',
      'where window_size >= patch_size * spatial_merge_size -- window_size ({window_size}) must '
         .. 'hold a block of {patch_size * spatial_merge_size} pixels' },
}

local types = { 'qwen2_5_vl', 'qwen2_5_vl_vision' }

local Vision = class('Qwen2_5_VisionTransformer', Module)
Vision.holds_parts = true
Vision.mixes = false             -- frames lie whole on a rank, whatever tokens of a text it has

-- Returns the complete configuration of the tower of a text model this wide, and the names of
-- fields that change nothing.
function Vision.read(config, width)
   local c = copy(err.type(op, 'vision_config', config, 'table'))
   if c.model_type ~= nil then
      err.choice(op, 'vision_config.model_type', c.model_type, types)
   end
   c.model_type, c.architectures = nil, nil
   local unused
   local problem = err.problem(function() c, unused = published.read(op, c, rows, rules) end)
   err.raise_if(problem, 'E_ARG', op, 'vision_config: %s', tostring(problem))
   c.out_hidden_size = c.out_hidden_size or width
   err.raise_if(c.out_hidden_size ~= width, 'E_ARG', op, 'vision_config.out_hidden_size (%d) must '
      .. 'be the hidden_size of the text model (%s)', c.out_hidden_size, tostring(width))
   return c, unused
end

-- ---- layers ------------------------------------------------------------------------------------

-- The product of published files: a convolution whose steps are its size, so that it is one of a
-- matrix with whole patches.
local Patches = class('Qwen2_5_VisionPatches', Module)
Patches.mixes = false

-- Makes the layer of a complete configuration.
function Patches:init(c, opts)
   Module.init(self)
   local p = c.patch_size
   self:param('weight', { c.hidden_size, c.in_channels, c.temporal_patch_size, p, p },
      { kind = 'normal', std = c.initializer_range }, opts)
   self:ready(opts)
end

-- Returns the embeddings [N, C] of patches x [N, P].
function Patches:forward(x)
   x = x:to(self.weight.dtype)
   return tide.linear(x, self.weight:reshape(self.weight:size(1), x:size(2)))
end

private.note(Patches.forward)

-- A module that only holds others.
local Group = class('Qwen2_5_VisionGroup', Module)
Group.mixes, Group.holds_parts = false, true

-- Makes a group. parts: a list of { name, module }.
function Group:init(parts)
   Module.init(self)
   for _, part in ipairs(parts) do self:child(part[1], part[2]) end
end

local Attention = class('Qwen2_5_VisionAttention', Module)
-- Patches see each other, and no tokens of a text: a rank of a context axis has its frames whole.
Attention.mixes, Attention.holds_parts = false, true

-- Makes the layer. whole: it attends within frames, not within windows.
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

local function norm(c, opts)
   return nn.RMSNorm(c.hidden_size, Module.inner(opts, { eps = 1e-6 }))
end

local names = { norm1 = 'norm1', mixer = 'attn', norm2 = 'norm2', mlp = 'mlp' }

local function block(c, opts, rope, whole)
   return nn.Block { names = names, norm1 = norm(c, opts), norm2 = norm(c, opts),
      mixer = Attention(c, opts, rope, whole),
      mlp = nn.MLP(Module.inner(opts, { dim = c.hidden_size, hidden = c.intermediate_size,
         bias = true, std = c.initializer_range })) }
end

-- Joins m x m patches to a feature.
local Merger = class('Qwen2_5_VisionMerger', Module)
Merger.mixes, Merger.holds_parts = false, true

-- Makes the layer of a complete configuration.
function Merger:init(c, opts)
   Module.init(self)
   self.width = c.hidden_size * c.spatial_merge_size ^ 2
   local function linear(nout)
      return nn.Linear(self.width, nout, Module.inner(opts, { std = c.initializer_range }))
   end
   self:child('ln_q', norm(c, opts))
   self:child('mlp', Group { { '0', linear(self.width) }, { '2', linear(c.out_hidden_size) } })
end

-- Returns the features [N / m m, O] of x [1, N, C].
function Merger:forward(x)
   local n = self.ln_q(x)
   local h = private.replace(n, n:reshape(x:size(2) * x:size(3) / self.width, self.width))
   h = private.replace(h, self.mlp['0'](h))
   h = private.replace(h, h:gelu())
   return private.replace(h, self.mlp['2'](h))
end
private.note(Merger.forward)

-- ---- the tower ---------------------------------------------------------------------------------

-- Makes the tower of a complete configuration. Its products are never in FP8: published sizes
-- (3420) are no multiples of a block. opts: as of every module.
function Vision:init(c, opts)
   Module.init(self)
   opts = copy(opts)
   opts.fp8 = nil
   self.config = c
   local full = {}
   for _, i in ipairs(c.fullatt_block_indexes) do full[i] = true end
   local rope = nn.rope.new { dim = c.hidden_size / c.num_heads, theta = c.rope_theta, axes = 2 }
   self:child('patch_embed', Group { { 'proj', Patches(c, Module.inner(opts)) } })
   local blocks = {}
   for i = 1, c.depth do blocks[i] = block(c, opts, rope, full[i - 1] == true) end
   self:child('blocks', nn.Stack(blocks))
   self:child('merger', Merger(c, opts))
end

-- Returns the numbers of a patch.
function Vision:patch_numel()
   local c = self.config
   return c.in_channels * c.temporal_patch_size * c.patch_size ^ 2
end

-- Raises unless patches [N, P] are those of the grids. name: of the argument.
function Vision:check_patches(name, patches, grids)
   local n, P = grid_.patches(grids), self:patch_numel()
   err.arg_if(not tide.is_tensor(patches), op, name, 'a tensor [N, P]', patches)
   err.raise_if(n == 0, 'E_ARG', op, '%s: expected patches of at least one image, got none; leave '
      .. 'images out of a call without any', name)
   err.raise_if(patches.ndim ~= 2 or patches:size(1) ~= n or patches:size(2) ~= P, 'E_SHAPE', op,
      '%s: the grids have %d patches of %d numbers (in_channels temporal_patch_size patch_size^2), '
      .. 'got [%s]', name, n, P, table.concat(patches.shape, ', '))
end

-- Returns the work of a frame of a grid, in products of a patch with a channel: the layers take 4 C
-- + 3 F a patch, of which an MLP has F inner ones, and whole attention as much as there are
-- patches.
function Vision:cost(g)
   local c, n = self.config, g[2] * g[3]
   local whole = math.min(1, #c.fullatt_block_indexes / c.depth)
   return n * (4 * c.hidden_size + 3 * c.intermediate_size + 2 * whole * n)
end

-- Returns a stream of zeros and its grid, the smallest image, like a tensor of patches: for ranks
-- without images, where the tower runs with that of others.
function Vision:blank(like)
   local m = self.config.spatial_merge_size
   return tide.zeros({ m * m, self:patch_numel() }, { dtype = like.dtype, device = like.device }),
      { { 1, m, m } }
end

-- Returns features [N / m m, O] of patches [N, P] of images and videos. grids: { t, h, w } in
-- patches, N together, as a list or a tensor [images, 3].
function Vision:forward(patches, grids)
   local c = self.config
   grids = grid_.read(op, 'grids', grids, c.spatial_merge_size)
   self:check_patches('patches', patches, grids)
   local device = patches.device
   local unit = c.spatial_merge_size ^ 2
   local side = math.floor(math.floor(c.window_size / c.spatial_merge_size) / c.patch_size)
   local lay = grid_.layout(grids, c.spatial_merge_size, side)
   local function index(list)
      return upload(function(here) return tide.tensor(list, { dtype = 'i64', device = here }) end,
         device)
   end
   local n = #lay.rows
   local x = self.patch_embed.proj(patches)
   local C = x:size(2)
   x = private.replace(x, x:reshape(n / unit, unit * C))
   x = private.replace(x, x:index_select(1, index(lay.order)))
   x = private.replace(x, x:reshape(1, n, C))
   local frames, windows = grid_.index(lay.frames, device), grid_.index(lay.windows, device)
   local positions = index { { lay.rows }, { lay.columns } }
   local y = self.blocks(x, { positions = positions, frames = frames, windows = windows,
      tiles = (frames or windows) and tiles.list(frames, windows) or {} })
   y = private.replace(x, y)
   y = private.replace(y, self.merger(y))
   return private.replace(y, y:index_select(1, index(lay.back)))
end
private.note(Vision.forward)

return Vision
