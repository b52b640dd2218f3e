-- The vision tower of Gemma 3: SigLIP over images of one size (arXiv 2303.15343, 2503.19786), and
-- the projector behind it, which averages blocks of m x m patches to features, with a norm and a
-- product.
--
-- Patches have the order of those of other towers, block by block, so that a feature is the mean of
-- m m rows. Learned positions are those of the places of patches in the image, row by row.
-- Legend: N patches, S of an image, P numbers of a patch, C width, O output width, m
-- spatial_merge_size.

local tide = require 'tide'
local Tower = require 'tide.model.vision_tower'
local class = require 'tide.class'
local err = require 'tide.util.err'
local grid_ = require 'tide.model.vision_grid'
local nn = require 'tide.nn'
local private = require 'tide.util.private'
local published = require 'tide.model.published'
local signature = require 'tide.util.signature'

local Module = nn.Module

-- ---- the configuration -------------------------------------------------------------------------

local count, side = 'integer >= 1', 'integer in [1, 1024]'

local rows = {
   { 'depth', 12, count }, { 'hidden_size', 768, count }, { 'num_heads', 12, count },
   { 'intermediate_size', 3072, count }, { 'in_channels', 3, count },
   { 'image_size', 224, 'integer in [1, 65536]' }, { 'patch_size', 16, side },
   { 'layer_norm_eps', 1e-6, 'number >= 0', float = true },
   { 'hidden_act', 'gelu_pytorch_tanh', "'gelu_pytorch_tanh'" },
   { 'initializer_range', 0.02, 'number >= 0', float = true },
   -- these follow from the whole configuration
   { 'spatial_merge_size', published.optional, 'integer in [1, 64]' },
   { 'temporal_patch_size', 1, 'integer in [1, 1]' },
   { 'out_hidden_size', published.optional, count },
}

local fits = signature.options {
   'where hidden_size % num_heads == 0 -- hidden_size ({hidden_size}) must be a multiple of '
      .. 'num_heads ({num_heads})',
   'where image_size % patch_size == 0 -- image_size ({image_size}) must be a multiple of '
      .. 'patch_size ({patch_size})',
}

local Vision = class('SiglipVision', Tower)
Vision.holds_parts = true
Vision.mixes = false

-- The fields and rules of the tower. A head that pools the last block (vision_use_head) makes
-- nothing that Gemma 3 reads.
Vision.described = {
   op = 'model.gemma3_vl', types = { 'siglip_vision_model' }, rows = rows,
   rules = {
      alias = { num_channels = 'in_channels', num_hidden_layers = 'depth',
         num_attention_heads = 'num_heads' },
      free = 'vision_use_head projection_dim projector_hidden_act',
      only = { attention_dropout = 0 },
      where = fits,
   },
}

-- Completes the configuration c of a tower whose images are `tokens` tokens each.
function Vision.complete(op, c, tokens)
   local patches, sides = c.image_size / c.patch_size, math.sqrt(tokens)
   err.raise_if(sides % 1 ~= 0 or patches % sides ~= 0, 'E_ARG', op, 'mm_tokens_per_image: '
      .. 'expected the square of a divisor of the %d patches of a side (vision_config.image_size / '
      .. 'patch_size), got %s', patches, err.show(tokens))
   local merge = patches / sides
   err.arg_if(c.spatial_merge_size ~= nil and c.spatial_merge_size ~= merge, op,
      'vision_config.spatial_merge_size', ('%d, the patches of a side of a token'):format(merge),
      c.spatial_merge_size)
   c.spatial_merge_size = merge
end

-- Returns the fields of config.json of a complete configuration.
function Vision.published(c)
   return { model_type = 'siglip_vision_model', hidden_size = c.hidden_size,
      intermediate_size = c.intermediate_size, num_hidden_layers = c.depth,
      num_attention_heads = c.num_heads, num_channels = c.in_channels, image_size = c.image_size,
      patch_size = c.patch_size, hidden_act = c.hidden_act, layer_norm_eps = c.layer_norm_eps,
      vision_use_head = false }
end

-- ---- layers ------------------------------------------------------------------------------------

local Attention = class('SiglipAttention', Module)
-- An image lies whole on a rank, whatever tokens of a text that has.
Attention.mixes, Attention.holds_parts = false, true

-- Makes the layer.
function Attention:init(c, opts)
   Module.init(self)
   local C = c.hidden_size
   self.heads, self.head_dim = c.num_heads, C / c.num_heads
   for _, name in ipairs { 'q_proj', 'k_proj', 'v_proj', 'out_proj' } do
      self:child(name, nn.Linear(C, C, Module.inner(opts, { std = c.initializer_range })))
   end
end

-- Returns the output [n, S, C] of x of the same shape: n images, each of which sees itself.
function Attention:forward(x)
   local n, S, C = unpack(x.shape)
   local function heads(name)
      local y = self[name](x)
      return private.replace(y, y:reshape(n, S, self.heads, self.head_dim))
   end
   local q, k, v = heads 'q_proj', heads 'k_proj', heads 'v_proj'
   local y = tide.attention(q, k, v, { causal = false })
   private.spend(q, k, v)
   y = private.replace(y, y:reshape(n, S, C))
   return private.replace(y, self.out_proj(y))
end
private.note(Attention.forward)

local names = { norm1 = 'layer_norm1', mixer = 'self_attn', norm2 = 'layer_norm2', mlp = 'mlp' }
local mlp_names = { up_proj = 'fc1', down_proj = 'fc2' }

local function norm(c, opts)
   return nn.LayerNorm(c.hidden_size, Module.inner(opts, { eps = c.layer_norm_eps }))
end

local function block(c, opts)
   return nn.Block { names = names, norm1 = norm(c, opts), norm2 = norm(c, opts),
      mixer = Attention(c, opts),
      mlp = nn.MLP(Module.inner(opts, { dim = c.hidden_size, hidden = c.intermediate_size,
         bias = true, std = c.initializer_range, act = 'gelu_tanh', names = mlp_names })) }
end

-- From patches to features of the width of the text.
local Projector = class('Gemma3_Projector', Module)
Projector.mixes, Projector.holds_parts = false, true

-- Makes the layer of a complete configuration.
function Projector:init(c, opts)
   Module.init(self)
   self.joins = c.spatial_merge_size ^ 2
   self:param('mm_input_projection_weight', { c.hidden_size, c.out_hidden_size },
      { kind = 'normal', std = c.initializer_range }, opts)
   self:child('mm_soft_emb_norm', nn.RMSNorm(c.hidden_size, Module.inner(opts,
      { eps = c.layer_norm_eps, offset = 1 })))
   self:ready(opts)
end

-- Returns the features [N / m m, O] of x [n, S, C], which lies block by block.
function Projector:forward(x)
   local rows_ = x:numel() / x:size(3) / self.joins
   local given = x:reshape(rows_, self.joins, x:size(3))
   local y = given:mean(2)
   y = private.replace(y, self.mm_soft_emb_norm(y))
   return private.replace(y, tide.matmul(y, self.mm_input_projection_weight))
end
private.note(Projector.forward)

-- ---- the tower ---------------------------------------------------------------------------------

-- Makes the tower of a complete configuration. opts: as of every module.
function Vision:init(c, opts)
   Module.init(self)
   opts = Module.inner(opts, {})
   opts.fp8, self.config = nil, c
   self:child('embeddings', Tower._Group {
      { 'patch_embedding', Tower._Patches(c, Module.inner(opts, { bias = true, flat = true })) },
      { 'position_embedding', nn.Embedding((c.image_size / c.patch_size) ^ 2, c.hidden_size,
         Module.inner(opts, { std = c.initializer_range })) },
   })
   local blocks = {}
   for i = 1, c.depth do blocks[i] = block(c, opts) end
   self:child('encoder', Tower._Group { { 'layers', nn.Stack(blocks) } })
   self:child('post_layernorm', norm(c, opts))
   self:child('projector', Projector(c, opts))
end

-- Raises unless patches [N, P] are those of the grids, images of the one size that the tower reads.
-- name: of the argument.
function Vision:check_patches(name, patches, grids)
   local c = self.config
   local n = c.image_size / c.patch_size
   for i, g in ipairs(grids) do
      err.raise_if(g[1] ~= 1 or g[2] ~= n or g[3] ~= n, 'E_ARG', self.described.op,
         'image_grid_thw[%d]: expected { 1, %d, %d }, since the tower reads images of %d x %d '
         .. 'pixels alone, got { %s }; resize each to these (tide.data.image.processor does)', i,
         n, n, c.image_size, c.image_size, table.concat(g, ', '))
   end
   Tower.check_patches(self, name, patches, grids)
end

-- Refuses images of different sizes.
local function check_alike(op, grids)
   local _, h, w = unpack(grids[1])
   for i, g in ipairs(grids) do
      err.raise_if(g[1] ~= 1 or g[2] ~= h or g[3] ~= w, 'E_ARG', op, 'grids[%d]: expected { 1, %d, '
         .. '%d }, as the images of a call have one size, got { %s }', i, h, w,
         table.concat(g, ', '))
   end
end

-- Returns the places, from 0, of the patches of an image of high x wide patches in the table of
-- positions, block by block.
local function places(c, high, wide)
   local lay, list = grid_.layout({ { 1, high, wide } }, c.spatial_merge_size, math.huge), {}
   for i, y in ipairs(lay.rows) do list[i] = y * (c.image_size / c.patch_size) + lay.columns[i] end
   return list
end

-- Returns features [N / m m, O] of patches [N, P] of images. grids: { 1, h, w } in patches, all the
-- same, as a list or a tensor [images, 3]. They may be smaller than the images of the model: those
-- of Tower:blank are.
function Vision:forward(patches, grids)
   local c = self.config
   grids = grid_.read(self.described.op, 'grids', grids, c.spatial_merge_size)
   Tower.check_patches(self, 'patches', patches, grids)
   check_alike(self.described.op, grids)
   local S = grids[1][2] * grids[1][3]
   local ids = self._tensor({ places(c, grids[1][2], grids[1][3]) }, 'i64', patches.device)
   local learned = private.replace(ids, self.embeddings.position_embedding(ids))
   local x = self.embeddings.patch_embedding(patches)
   x = private.replace(x, x:reshape(#grids, S, c.hidden_size))
   local sum = x + learned
   private.spend(x, learned)
   x = private.replace(sum, self.encoder.layers(sum, {}))
   x = private.replace(x, self.post_layernorm(x))
   return private.replace(x, self.projector(x))
end
private.note(Vision.forward)

return Vision
