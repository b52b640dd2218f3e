-- The vision tower of Qwen2.5-VL: patches of images and frames, packed in one stream, to features
-- of the width of the language model.
--
-- Blocks that fullatt_block_indexes does not name attend within windows of window_size pixels.
-- Patches are put in the order of the windows, so that frames and windows are both runs of patches;
-- forward returns the features in the order of the patches.
-- Legend: N patches, P numbers of a patch, C width, O output width, m spatial_merge_size.

local Tower = require 'tide.model.vision_tower'
local class = require 'tide.class'
local grid_ = require 'tide.model.vision_grid'
local nn = require 'tide.nn'
local private = require 'tide.util.private'
local tiles = require 'tide.nn.tiles'

local Module, Group = nn.Module, Tower._Group

local Vision = class('Qwen2_5_VisionTransformer', Tower)
Vision.holds_parts = true
Vision.mixes = false

Vision.described = Tower._described {
   op = 'model.qwen2_5_vl', types = { 'qwen2_5_vl', 'qwen2_5_vl_vision' },
   fields = {
      { 'tokens_per_second', 4, 'number > 0' }, { 'window_size', 112, 'integer >= 1' },
      { 'fullatt_block_indexes', { 7, 15, 23, 31 }, 'integer[] >= 0' },
      { 'hidden_act', 'silu', "'silu'" },
   },
   free = 'spatial_patch_size',
   where = { 'where window_size >= patch_size * spatial_merge_size -- window_size ({window_size}) '
      .. 'must hold a block of {patch_size * spatial_merge_size} pixels' },
}

local function norm(c, opts)
   return nn.RMSNorm(c.hidden_size, Module.inner(opts, { eps = 1e-6 }))
end

local names = { norm1 = 'norm1', mixer = 'attn', norm2 = 'norm2', mlp = 'mlp' }

local function block(c, opts, rope, whole)
   return nn.Block { names = names, norm1 = norm(c, opts), norm2 = norm(c, opts),
      mixer = Tower._Attention(c, opts, rope, whole),
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

-- Makes the tower of a complete configuration. opts: as of every module.
function Vision:init(c, opts)
   opts = self:_begin(c, opts)
   local full, blocks, rope = {}, {}, self:_rope()
   for _, i in ipairs(c.fullatt_block_indexes) do full[i] = true end
   for i = 1, c.depth do blocks[i] = block(c, opts, rope, full[i - 1] == true) end
   self:child('blocks', nn.Stack(blocks))
   self:child('merger', Merger(c, opts))
end

-- Returns the work of a frame of a grid, in products of a patch with a channel: the layers take 4 C
-- + 3 F a patch, of which an MLP has F inner ones, and whole attention as much as there are
-- patches.
function Vision:cost(g)
   local c, n = self.config, g[2] * g[3]
   local whole = math.min(1, #c.fullatt_block_indexes / c.depth)
   return n * (4 * c.hidden_size + 3 * c.intermediate_size + 2 * whole * n)
end

-- Returns features [N / m m, O] of patches [N, P] of images and videos. grids: { t, h, w } in
-- patches, N together, as a list or a tensor [images, 3].
function Vision:forward(patches, grids)
   local c = self.config
   grids = self:_checked(patches, grids)
   local device = patches.device
   local unit = c.spatial_merge_size ^ 2
   local side = math.floor(math.floor(c.window_size / c.spatial_merge_size) / c.patch_size)
   local lay = grid_.layout(grids, c.spatial_merge_size, side)
   local n = #lay.rows
   local x = self.patch_embed.proj(patches)
   local C = x:size(2)
   x = private.replace(x, x:reshape(n / unit, unit * C))
   x = private.replace(x, x:index_select(1, self._tensor(lay.order, 'i64', device)))
   x = private.replace(x, x:reshape(1, n, C))
   local frames, windows = grid_.index(lay.frames, device), grid_.index(lay.windows, device)
   local positions = self._tensor({ { lay.rows }, { lay.columns } }, 'i64', device)
   local y = self.blocks(x, { positions = positions, frames = frames, windows = windows,
      tiles = (frames or windows) and tiles.list(frames, windows) or {} })
   y = private.replace(x, y)
   y = private.replace(y, self.merger(y))
   return private.replace(y, y:index_select(1, self._tensor(lay.back, 'i64', device)))
end
private.note(Vision.forward)

return Vision
