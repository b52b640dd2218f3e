-- Batches of a captured step whose sequence lies over several ranks: cut before each replay.
--
-- A recording reads its tensors at fixed addresses, and its exchanges have fixed sizes. So the
-- fields of a batch are arguments of the captured call, which copies them, and the context of each
-- micro-batch is one object for all replays: which document and position each token has is written
-- into its tensors on the device.

local tide = require 'tide'
local err = require 'tide.util.err'
local each = require 'tide.util.each'

local op = 'train.step'

local Replayed = {}
Replayed.__index = Replayed

-- Returns a plan and the context around it as text, without the documents of its index: equal texts
-- have equal shapes, and equal numbers where there is no index.
local function text_of(context)
   local map = context.map
   return ('%s plan of %d tokens padded to %d over %d ranks, documents end at %s, slots at %s, %s')
      :format(map.kind, map.length, map.padded, map.size, table.concat(map.cu_real, ' '),
         table.concat(map.cu_slot, ' '), context.index and ('index of %d row(s)')
         :format(context.index:size(1)) or 'no index')
end

-- Writes (document, position) of each token of a later batch, and what tiles of them span, into the
-- tensors of the recording.
local function rewrite(kept, context, device)
   for name, t in each(kept.keep) do
      if t and t.device == device then
         local key = name:gsub('^tiles ', '')
         local rank = tonumber(key:match('^(%d+)' .. device .. '$'))
         local first, n = key:match('^' .. device .. ' (%d+) (%d+)$')
         local now = rank and context:k_index(rank, device)
            or context:joined(device, tonumber(first), tonumber(n))
         t:copy_(key == name and now or tide.attention_tiles(now))
      end
   end
end

-- Returns this rank's part of micro-batch i, with the context that the recording has.
function Replayed:cut(i, batch)
   local handle = self.handle
   local mine = handle:cut(batch)
   local context, kept = mine.context, self.contexts[i]
   if not context then return mine end
   local text = text_of(context)
   if not kept then
      self.contexts[i], self.texts[i] = context, text
      -- exchanges of a fixed size serve all later documents
      context.whole_hops = context.index ~= nil
      return mine
   end
   err.raise_if(text ~= self.texts[i], 'E_STATE', op, 'captured: micro-batch %d is cut by another '
      .. 'plan than the step was captured with (%s, now %s); such a step has fixed lengths and, in '
      .. "a layout that follows documents, fixed documents", i, self.texts[i], text)
   err.raise_if(context.index and handle.mamba, 'E_UNSUPPORTED', op, 'captured: Mamba-2 layers '
      .. 'over ranks pass states on by the documents of the recording; do not capture steps whose '
      .. 'rows hold documents')
   if context.index then rewrite(kept, context, self.device) end
   mine.context = kept
   return mine
end

-- handle: of cp.attach. device: that of the model.
return function(handle, device)
   return setmetatable({ handle = handle, device = device, contexts = {}, texts = {} }, Replayed)
end
