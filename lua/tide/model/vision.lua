-- A vision tower: patches of images or frames of any size, packed in one stream, to features of a
-- language model's width.
--
-- Each image (or frame) is a document of bidirectional attention, so where a stream is cut between
-- images nothing changes: a rank runs its own images alone. Positions are the rows and columns of
-- patches, as fixed sines and cosines.
-- Legend: T patches of all images, P numbers of a patch, C width, O output width.

local tide = require 'tide'
local class = require 'tide.class'
local err = require 'tide.util.err'
local grid = require 'tide.model.vision_grid'
local nn = require 'tide.nn'
local signature = require 'tide.util.signature'
local tiles = require 'tide.nn.tiles'

local Module = nn.Module

local op = 'model.vision'

-- Returns the complete configuration.
local complete = signature.options {
   'patch_dim: integer >= 1', 'channels: integer >= 1 = 3', 'hidden_size: integer >= 4',
   'num_hidden_layers: integer >= 1', 'num_attention_heads: integer >= 1',
   'intermediate_size: integer? >= 1', 'out_size: integer >= 1 = hidden_size',
   'layer_norm_eps: number >= 0 = 1e-6', 'position_base: number >= 1 = 10000',
   'where hidden_size % 4 == 0 -- hidden_size ({hidden_size}) must be a multiple of 4 (sine and '
      .. 'cosine of rows and columns)',
}

local function block(c, opts)
   local norm = Module.inner(opts, { eps = c.layer_norm_eps })
   return nn.Block {
      norm1 = nn.LayerNorm(c.hidden_size, norm),
      mixer = nn.Attention(Module.inner(opts, {
         dim = c.hidden_size, heads = c.num_attention_heads, bias = true, out_bias = true,
         causal = false,
      })),
      norm2 = nn.LayerNorm(c.hidden_size, norm),
      mlp = nn.MLP(Module.inner(opts, {
         dim = c.hidden_size, hidden = c.intermediate_size, act = 'gelu', bias = true,
      })),
   }
end

local Vision = class('Vision', Module)
Vision.mixes = true              -- images lie whole on a rank: parallel.multimodal shares them out

-- Makes a vision tower. config: patch_dim (pixels of a side), hidden_size, num_hidden_layers,
-- num_attention_heads; optional channels (3), intermediate_size (4 hidden), out_size (hidden),
-- layer_norm_eps, position_base. opts: dtype, device, seed, init.
function Vision:init(config, opts)
   opts = Module.options(op, opts, {})
   Module.init(self)
   local c = complete(op, config)
   c.intermediate_size = c.intermediate_size or 4 * c.hidden_size
   self.config = c
   self:child('patch_embed', nn.Linear(c.channels * c.patch_dim ^ 2, c.hidden_size,
      Module.inner(opts)))
   local blocks = {}
   for i = 1, c.num_hidden_layers do blocks[i] = block(c, opts) end
   self:child('blocks', nn.Stack(blocks))
   self:child('norm', nn.LayerNorm(c.hidden_size, Module.inner(opts, { eps = c.layer_norm_eps })))
   self:child('up', nn.Linear(c.hidden_size, c.intermediate_size, Module.inner(opts)))
   self:child('down', nn.Linear(c.intermediate_size, c.out_size, Module.inner(opts)))
   self:ready(opts)
end

-- Returns the row and the column of every patch of images of these sizes (a list or tensor [N, 2]),
-- two tensors [T] like opts, and the cumulative patches of the images.
local function coordinates(sizes, patch, opts)
   if tide.is_tensor(sizes) then sizes = sizes:tolist() end
   err.arg_if(type(sizes) ~= 'table' or #sizes == 0, op, 'sizes', 'the sizes of at least one '
      .. 'image, a list or tensor [N, 2]', sizes)
   local rows, columns, cu = {}, {}, { 0 }
   for i, s in ipairs(sizes) do
      local h, w = grid.of_size(op, ('sizes[%d]'):format(i), s, patch, 1)
      rows[i] = tide.arange(h, opts):reshape { h, 1 }:expand(h, w):reshape { h * w }
      columns[i] = tide.arange(w, opts):reshape { 1, w }:expand(h, w):reshape { h * w }
      cu[i + 1] = cu[i] + h * w
   end
   return tide.cat(rows, 1), tide.cat(columns, 1), cu
end

-- Returns [T, C] of sines and cosines.
local function position_signal(c, rows, columns, opts)
   local n, list = c.hidden_size / 4, {}
   for i = 1, n do list[i] = c.position_base ^ (-(i - 1) / n) end
   local f = tide.tensor(list, opts):reshape { 1, n }
   local r, q = rows:unsqueeze(2) * f, columns:unsqueeze(2) * f
   return tide.cat({ r:sin(), r:cos(), q:sin(), q:cos() }, 2)
end

-- Returns the features [T, O] of patches [1, T, P]. at: sizes (of the images, [N, 2] in pixels),
-- index (i32 [1, T, 2] of (image, patch), which says whose patches see each other; by default the
-- patches of an image do).
function Vision:forward(patches, at)
   local c, device = self.config, patches.device
   local opts = { device = device, dtype = patches.dtype == 'f64' and 'f64' or 'f32' }
   local rows, columns, cu = coordinates(at.sizes, c.patch_dim, opts)
   err.raise_if(cu[#cu] ~= patches:size(2), 'E_SHAPE', op, 'the sizes give %d patches, but '
      .. 'there are %d', cu[#cu], patches:size(2))
   local index = at.index or grid.index(cu, device)
   local signal = position_signal(c, rows, columns, opts)
   local x = self.patch_embed(patches) + signal:to(patches.dtype):unsqueeze(1)
   local h = self.blocks(x, { q_index = index, k_index = index, tiles = tiles.list(index) })
   local y = self.down(self.up(self.norm(h)):gelu())
   return y:reshape { y:size(2), y:size(3) }
end

return signature.doors(op, Vision, {
   forward = { 'patches: tensor [1, T, P]', op = op, opts = {
      'sizes: any -- sizes of the images [N, 2], in pixels',
      'index: tensor? [1, T, 2] of i32 -- pairs (image, patch) of what sees each other; by default '
         .. 'each image sees itself' } },
})
