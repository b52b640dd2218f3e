-- The vision tower of Qwen3-VL and Qwen3.5: patches of images and frames, packed in one stream, to
-- features of the width of the language model. Qwen3-VL also has deepstack features: those of
-- earlier blocks, which the first layers of the language model add (arXiv 2406.04334).
--
-- Patches get learned positions of a square table, interpolated between its four nearest entries,
-- beside rotary ones. Every block attends within frames.
-- Legend: N patches, P numbers of a patch, C width, O output width, m spatial_merge_size, K blocks
-- with deepstack features.

local tide = require 'tide'
local Tower = require 'tide.model.vision_tower'
local class = require 'tide.class'
local err = require 'tide.util.err'
local grid_ = require 'tide.model.vision_grid'
local nn = require 'tide.nn'
local private = require 'tide.util.private'
local published = require 'tide.model.published'
local tiles = require 'tide.nn.tiles'

local Module = nn.Module

local Vision = class('Qwen3_VisionTransformer', Tower)
Vision.holds_parts = true
Vision.mixes = false

-- Refuses blocks that the tower does not have, or that have two mergers.
local function check_deepstack(c, op)
   local seen = {}
   for k, i in ipairs(c.deepstack_visual_indexes) do
      err.arg_if(i >= c.depth or seen[i], op, ('deepstack_visual_indexes[%d]'):format(k),
         ('a block from 0 to %d that no other entry names'):format(c.depth - 1), i)
      seen[i] = true
   end
end

-- Refuses deepstack features of a family that has none. Files may have the field, an empty list.
local function without_deepstack(c, op)
   local list = c.deepstack_visual_indexes
   err.arg_if(list and list[1], op, 'deepstack_visual_indexes', 'an empty list: this family takes '
      .. 'features of the last block alone', list)
   c.deepstack_visual_indexes = nil
end

-- Returns the fields and rules of a family with this tower. op: of the text model; types: values of
-- model_type; how: nil, or deepstack (false: the family has no such features).
function Vision._of(op, types, how)
   local has_deepstack = not how or how.deepstack
   return Tower._described {
      op = op, types = types, complete = has_deepstack and check_deepstack or without_deepstack,
      defaults = { depth = 27, hidden_size = 1152, intermediate_size = 4304, patch_size = 16 },
      fields = {
         { 'num_position_embeddings', 2304, 'integer >= 1' },
         { 'deepstack_visual_indexes', has_deepstack and { 8, 16, 24 } or published.optional,
            'integer[] >= 0' },
         { 'hidden_act', 'gelu_pytorch_tanh', "'gelu_pytorch_tanh'" },
      },
   }
end

local function norm(width, opts)
   return nn.LayerNorm(width, Module.inner(opts, { eps = 1e-6 }))
end

local names = { norm1 = 'norm1', mixer = 'attn', norm2 = 'norm2', mlp = 'mlp' }
local mlp_names = { up_proj = 'linear_fc1', down_proj = 'linear_fc2' }

local function block(c, opts, rope)
   return nn.Block { names = names, norm1 = norm(c.hidden_size, opts),
      norm2 = norm(c.hidden_size, opts), mixer = Tower._Attention(c, opts, rope, true),
      mlp = nn.MLP(Module.inner(opts, { dim = c.hidden_size, hidden = c.intermediate_size,
         bias = true, std = c.initializer_range, act = 'gelu_tanh', names = mlp_names })) }
end

-- Joins m x m patches to a feature.
local Merger = class('Qwen3_VisionMerger', Module)
Merger.mixes, Merger.holds_parts = false, true

-- Makes the layer of a complete configuration. is_late: its norm is over the joined patches.
function Merger:init(c, opts, is_late)
   Module.init(self)
   self.width, self.is_late = c.hidden_size * c.spatial_merge_size ^ 2, is_late
   local function linear(nout)
      return nn.Linear(self.width, nout, Module.inner(opts, { std = c.initializer_range }))
   end
   self:child('norm', norm(is_late and self.width or c.hidden_size, opts))
   self:child('linear_fc1', linear(self.width))
   self:child('linear_fc2', linear(c.out_hidden_size))
end

-- Returns the features [N / m m, O] of x [1, N, C].
function Merger:forward(x)
   local rows, width, first = x:numel() / self.width, self.width, self.linear_fc1
   local joined
   if self.is_late then
      local given = x:reshape(rows, width)
      joined = private.replace(given, self.norm(given))
   else
      local n = self.norm(x)
      joined = private.replace(n, n:reshape(rows, width))
   end
   local h = private.replace(joined, first(joined))
   h = private.replace(h, h:gelu())
   return private.replace(h, self.linear_fc2(h))
end
private.note(Merger.forward)

-- Makes the tower of a complete configuration. opts: as of every module.
function Vision:init(c, opts)
   opts = self:_begin(c, opts, true)
   self:child('pos_embed', nn.Embedding(c.num_position_embeddings, c.hidden_size,
      Module.inner(opts, { std = c.initializer_range })))
   local blocks, deep, rope = {}, {}, self:_rope()
   for i = 1, c.depth do blocks[i] = block(c, opts, rope) end
   self:child('blocks', nn.Stack(blocks))
   self:child('merger', Merger(c, opts, false))
   for k = 1, #(c.deepstack_visual_indexes or {}) do
      deep[k] = { tostring(k - 1), Merger(c, opts, true) }
   end
   if c.deepstack_visual_indexes then
      self:child('deepstack_merger_list', Tower._Group(deep))
   end
end

-- Returns learned positions [N, C] of patches, in f32, or in f64 beside x in f64. lay: of
-- grid_.layout; grids: theirs.
local function positions_of(self, lay, grids, x)
   local dtype = x.dtype == 'f64' and 'f64' or 'f32'
   local side, n = math.floor(math.sqrt(self.config.num_position_embeddings)), #lay.rows
   local ids, weights = grid_.nearest(lay, grids, side)
   ids = self._tensor(ids, 'i64', x.device)
   weights = self._tensor(weights, dtype, x.device)
   weights = private.replace(weights, weights:reshape(n, 4, 1))
   local y = private.replace(ids, self.pos_embed(ids))
   y = private.replace(y, y:to(dtype))
   y = private.replace(y, y:reshape(n, 4, x:size(2)))
   y = private.replace(y, y * weights)
   private.spend(weights)
   return private.replace(y, y:sum(2))
end

-- Returns the functions of the outputs of blocks (see nn.Stack) that make deepstack features.
local function after(self)
   local list = {}
   for k, i in ipairs(self.config.deepstack_visual_indexes or {}) do
      local merger = self.deepstack_merger_list[tostring(k - 1)]
      list[i + 1] = function(h) return h, merger(h) end
   end
   return list
end

-- Returns features [N / m m, (1 + K) O] of patches [N, P] of images and videos: those of the last
-- block, and beside them those of each block of deepstack_visual_indexes, first blocks first.
-- grids: { t, h, w } in patches, N together, as a list or a tensor [images, 3].
function Vision:forward(patches, grids)
   grids = self:_checked(patches, grids)
   local device = patches.device
   local lay = grid_.layout(grids, self.config.spatial_merge_size, math.huge)
   local x = self.patch_embed.proj(patches)
   local learned = positions_of(self, lay, grids, x)
   learned = private.replace(learned, learned:to(x.dtype))
   local sum = x + learned
   private.spend(x, learned)
   x = private.replace(sum, sum:reshape(1, sum:size(1), sum:size(2)))
   local frames = grid_.index(lay.frames, device)
   local list = { self.blocks(x, { frames = frames, after = after(self),
      positions = self._tensor({ { lay.rows }, { lay.columns } }, 'i64', device),
      tiles = frames and tiles.list(frames) or {} }) }
   local y = private.replace(x, list[1])
   list[1] = private.replace(y, self.merger(y))
   if #list == 1 then return list[1] end
   local all = tide.cat(list, 2)
   private.spend(unpack(list))
   return all
end
private.note(Vision.forward)

return Vision
