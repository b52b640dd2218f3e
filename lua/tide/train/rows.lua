-- The tokens of several answers that a model reads together, with their keys, values and states.
--
-- Rows of different lengths are padded on the left: the last column is the last token of every
-- row, padding is document -1 for attention and a sequence of its own for Mamba, and positions
-- count from a row's first token.
-- A prompt may have images (inputs), whose tokens have positions of their own. Columns kept for a
-- later prompt know the images that they have read by checksums of their patches.

local tide = require 'tide'
local causal_lm = require 'tide.model.causal_lm'
local class = require 'tide.class'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local kv_cache = require 'tide.nn.kv_cache'
local pictures = require 'tide.train.pictures'
local spans = require 'tide.model.vision_spans'

local rows = {}

local Rows = {}
Rows.__index = Rows

-- Returns the first rotary positions of a model whose frequencies depend on the longest row of a
-- call; nil without any.
function rows.varying_rope(model)
   for _, entry in ipairs(model:named_modules()) do
      local rope = rawget(entry.module, 'rope')
      if rope and rope.trained_length then return rope end
   end
end

local function rope_type(rope) return rope and (rope.scaling.rope_type or rope.scaling.type) end

-- Returns the columns of a model. context: most tokens of a row, by default those that the model
-- was made for (its positions, times the factor of dynamic scaling); device: of the model. The
-- caller sets the fields inputs (what the model gets beside the ids of prompts that begin, or nil)
-- and keeps (whether a later prompt may begin with the same images).
function rows.new(model, context, device)
   local n, rope = model.config.max_position_embeddings or math.huge, rows.varying_rope(model)
   if rope_type(rope) == 'dynamic' then n = math.floor(n * rope.scaling.factor) end
   return setmetatable({ model = model, context = context or n, device = device,
      rope = rope }, Rows)
end

-- Raises unless ids is a list of at least one id below vocab (nil: of any size).
function rows.check_ids(op, name, ids, vocab)
   if #err.integers(op, name, ids, 0) == 0 then
      err.arg_text(op, name, 'at least one id', 'none')
   end
   for i, id in ipairs(ids) do
      err.raise_if(vocab and id >= vocab, 'E_ARG', op, '%s[%d]: the model has %d ids, got %d; is '
         .. 'this its tokenizer?', name, i, vocab, id)
   end
end

-- Returns whether the model takes rows of different lengths in one call.
function rows.takes_ragged(model)
   return class.is(model, causal_lm) and not rows.varying_rope(model)
end

-- ---- taking up earlier tokens ------------------------------------------------------------------

-- Returns whether all caches can go back to their first n tokens: a state holds all tokens
-- together.
local function can_shorten(caches, n)
   for _, cache in ipairs(caches) do
      if cache.state or cache.conv or not kv_cache.can_shorten(cache, n) then return false end
   end
   return true
end

-- Returns how many of the tokens in the caches begin the list, at least one of which is left to
-- read; 0 where they cannot be used. shown: the pictures of the list.
local function shared(self, list, shown)
   local fed, n = self.fed, 0
   if not fed or self.rope then return 0 end
   local most = math.min(self.placed or #fed, #list - 1)
   while n < most and fed[n + 1] == list[n + 1] do n = n + 1 end
   n = pictures.shared(self.shown, shown, n)
   if self.model.sees_whole_images then n = spans.shared(self.model, fed, list, n) end
   return (n == #fed or can_shorten(self.caches, n)) and n or 0
end

-- ---- calls -------------------------------------------------------------------------------------

-- Returns the position i64 [B, T] and (document, column) i32 [B, T, 2] of columns after self.width.
local function places(self, T)
   local positions, index = {}, {}
   for r, lead in ipairs(self.leads) do
      positions[r], index[r] = {}, {}
      for t = 1, T do
         local column = self.width + t - 1
         positions[r][t] = math.max(0, math.min(column - lead, self.context - 1))
         index[r][t] = { column < lead and -1 or 0, column }
      end
   end
   return tide.tensor(positions, { dtype = 'i64', device = self.device }),
      tide.tensor(index, { dtype = 'i32', device = self.device })
end

local function place(self, n, T)
   local at = { caches = self.caches }
   if class.is(self.model, causal_lm) then at.last_only = true end
   if self.leads then
      at.positions, at.q_index = places(self, T)
      self.index = self.index and tide.cat({ self.index, at.q_index }, 2) or at.q_index
      at.k_index = self.index
      return at
   end
   at.positions = tide.arange(self.width, self.width + T, 1, { dtype = 'i64',
      device = self.device }):reshape(1, T)
   if n > 1 then at.positions = at.positions:expand(n, T):contiguous() end
   return at
end

-- Returns whether the positions [3, B, 1] of last tokens are those of texts, one for all axes.
local function is_text(last)
   local time = last:narrow(1, 1, 1)
   return last:eq(time:expand(unpack(last.shape))):all():item()
end

-- Gives tokens behind those of caches the pairs by which a model sees whole images.
local function span_images(self, at)
   if at.q_index or self.width == 0 then return end
   local function pairs_of(first, last)
      local p = tide.arange(first, last, 1, { dtype = 'i32', device = self.device })
      local one = p:reshape(1, last - first, 1)
      return tide.cat({ one * 0, one }, 3)
   end
   local last = self.width + at.positions:size(2)
   at.q_index, at.k_index = pairs_of(self.width, last), pairs_of(0, last)
end

-- Completes the place of the last tokens of rows with images, whose positions are not those of a
-- text. Later ones go on from the last, on each axis: self.ahead is how far it is from its place in
-- a text. Behind an image they lie elsewhere in a longer prompt: self.placed is how many tokens it
-- may share. whole: the ids of all tokens so far, i64 [B, n].
local function place_images(self, whole, at)
   if self.model.sees_whole_images then span_images(self, at) end
   if self.model.plain_positions then return end
   local o, text = pictures.places(self.inputs), at.positions
   local T = text:size(2)
   if self.leads then o.index = at.q_index end
   at.positions = self.model:rope_index(whole, o):narrow(3, whole:size(2) - T + 1, T)
   local last = at.positions:narrow(3, T, 1)
   self.ahead = last - text:narrow(2, T, 1)
   self.placed = self.keeps and not is_text(last) and whole:size(2) or nil
end

local function tensor_of(self, lists)
   return tide.tensor(lists, { dtype = 'i64', device = self.device })
end

-- Does what advance does. begun: { lists, inputs } of rows that begin with images, the ids of all
-- their tokens and what the model gets beside those that it reads; nil of others.
local function read(self, lists, begun)
   local fed, T = self.fed, #lists[1]
   self.fed = nil                      -- unknown if the call fails half-way
   local x = tensor_of(self, lists)
   local at = place(self, #lists, T)
   if begun then
      place_images(self, begun[1] == lists and x or tensor_of(self, begun[1]), at)
      copy(begun[2], at)
   elseif self.ahead then
      at.positions = at.positions + self.ahead
   end
   local logits = self.model(x, at)
   self.width = self.width + T
   for _, id in ipairs(fed and lists[1] or {}) do fed[#fed + 1] = id end
   self.fed = fed
   return logits:select(2, logits:size(2)):float()
end

-- Reads one list of ids per row, all of one length, after those before. Returns the logits behind
-- each row: f32 [rows, vocabulary].
function Rows:advance(lists) return read(self, lists) end

-- Returns whether the next token switches longrope to its long factors, so that all tokens must be
-- read again, as transformers does.
function Rows:switches()
   return rope_type(self.rope) == 'longrope' and self.width == self.rope.trained_length
end

-- Goes back to the first n tokens of a list with the pictures `shown`, and reads the others.
local function go_on(self, list, shown, n)
   for _, cache in ipairs(self.caches) do kv_cache.shorten(cache, n) end
   self.width, self.fed, self.ahead, self.placed = n, {}, nil, nil
   local rest = {}
   for i, id in ipairs(list) do
      if i <= n then self.fed[i] = id else rest[i - n] = id end
   end
   return read(self, { rest }, self.inputs and { { list }, pictures.behind(shown, n) })
end

-- Returns lists of any lengths as lists of one length, and how many tokens of padding begin each;
-- nil without padding.
local function padded(lists)
   local most, least = 0, math.huge
   for _, list in ipairs(lists) do most, least = math.max(most, #list), math.min(least, #list) end
   if most == least then return lists, nil end
   local out, leads = {}, {}
   for r, list in ipairs(lists) do
      leads[r], out[r] = most - #list, {}
      for i = 1, most do out[r][i] = list[i - most + #list] or 0 end
   end
   return out, leads
end

-- Forgets what was read, but what begins the one list of ids, and reads the lists, of any lengths.
-- Returns as advance does.
function Rows:begin(lists)
   local one = #lists == 1 and lists[1]
   local shown = one and self.keeps and pictures.of(self.model, one, self.inputs) or {}
   local can_share = one and (self.keeps or not self.inputs)
   local n = can_share and shared(self, one, shown) or 0
   self.shown = pictures.known(shown)
   if n > 0 then return go_on(self, one, shown, n) end
   self.caches, self.width, self.index, self.ahead, self.placed = {}, 0, nil, nil, nil
   local model = self.model
   for i = 1, model.blocks and #model:blocks() or model.config.num_hidden_layers do
      self.caches[i] = {}
   end
   self.fed = one and {} or nil
   lists, self.leads = padded(lists)
   return read(self, lists, self.inputs and { lists, self.inputs })
end

return rows
