-- Which later tokens the tokens of an image see: the index of a decoder that sees images whole.
--
-- A run of tokens of images is seen by each of them: attention is causal, but for these, whose
-- index has a third number, the position of the last token of the run (see tide.attention). Images
-- without a token between them are one run, as in transformers. A window still ends at the left
-- where it does for a text.
--
-- Legend: B batch, T tokens.

local tide = require 'tide'
local Backbone = require 'tide.model.backbone'
local context_ = require 'tide.nn.context'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local mask_ = require 'tide.nn.mask'
local upload = require 'tide.util.upload'

local spans = {}

-- Writes the third number of the tokens of a row. tokens: { document, position } of each.
local function mark(row, tokens, image)
   local t = 1
   while t <= #row do
      local first, doc, last = t, tokens[t][1], tokens[t][2]
      while row[first] == image and row[t + 1] == image and tokens[t + 1][1] == doc do
         t = t + 1
         last = math.max(last, tokens[t][2])
      end
      for i = first, t do tokens[i][3] = math.max(last, tokens[i][2]) end
      t = t + 1
   end
end

-- Returns the pairs of rows of a text, lists.
local function plain(B, T)
   local rows = {}
   for b = 1, B do
      rows[b] = {}
      for t = 1, T do rows[b][t] = { 0, t - 1 } end
   end
   return rows
end

-- Returns the index i32 [B, T, 3] of ids [B, T] on their device: (document, position, until).
-- index: their pairs [B or 1, T, 2 or 3], or nil for rows of one document each.
function spans.index(self, ids, index)
   local B, T = ids:size(1), ids:size(2)
   local given = index and index:to 'i64':tolist() or plain(B, T)
   local rows, all = ids:tolist(), {}
   for b, row in ipairs(rows) do
      local list = {}
      for t, pair in ipairs(given[b] or given[1]) do
         list[t] = { tonumber(pair[1]), tonumber(pair[2]) }
         row[t] = tonumber(row[t])
      end
      mark(row, list, self.config.image_token_id)
      all[b] = list
   end
   return upload(function(where) return tide.tensor(all, { dtype = 'i32', device = where }) end,
      ids.device)
end

-- Raises unless the index of a context over ranks says how far tokens see.
local function check_cut(self, context, device)
   err.raise_if(context:q_index(device):size(3) < 3, 'E_ARG', self.op, 'context: the tokens of '
      .. 'an image see each other, and the index of this context has no third number that says how '
      .. 'far; cut a batch that model:placed(batch) completed (handle:cut does so)')
end

-- Completes the place of the tokens of a call with images: its index gets the third number. A null
-- device has no ids to read; there the mask stays that of a text.
function spans.complete(self, ids, o, context)
   if ids.device == 'null' then return end
   if context then
      local index = context_._whole_index(context, ids.device)
      if not index then return check_cut(self, context, ids.device) end
      if index:size(3) < 3 then o.context = context:_seen(spans.index(self, ids, index)) end
      return
   end
   local given = o.q_index or o.index
   if given and given:size(3) == 3 then return end
   err.arg_if(not o.q_index and Backbone._has_keys(o.caches), self.op, 'q_index', 'the pairs of '
      .. 'the tokens, and k_index those of all tokens so far, beside images and caches that hold '
      .. 'earlier ones', nil)
   local mask = o.attention_mask
   if mask ~= nil then given = mask_.of_call(self.op, copy(o), ids) end
   local made = spans.index(self, ids, given)
   o.attention_mask = nil
   if o.q_index then o.q_index = made else o.index = made end
end

-- Returns how many of the first n ids, which two prompts share, have the keys and values of both:
-- fewer where a run of images goes on in one of them, whose tokens saw more.
function spans.shared(self, one, other, n)
   local image = self.config.image_token_id
   if one[n + 1] ~= image and other[n + 1] ~= image then return n end
   while n > 0 and one[n] == image do n = n - 1 end
   return n
end

return spans
