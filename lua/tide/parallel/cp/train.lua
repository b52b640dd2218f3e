-- A model whose sequence lies over several ranks.
--
--    local handle = cp.attach(model, mesh:axis 'cp', { method = 'ring', layout = 'zigzag' })
--    local mine = handle:cut { ids = ids, labels = labels }       -- this rank's part, and context
--    model:loss(mine.ids, mine.labels, { context = mine.context, count = count }):backward()
--    handle:restore()
--
-- Only attention and layers that keep a state (Mamba-2, gated delta nets) look along the sequence,
-- so their `attend` and `mix` are all that is wrapped (the latter by mamba_cp). All other modules
-- work on this rank's tokens as they are, and declare so (field mixes of nn.Module). The context is
-- an argument of the call, so recomputation in backward uses the same one; a model that is not
-- attached refuses it.
--
-- Losses are this rank's sum over the count of all ranks, so gradients add up over the data and
-- context axes. What a plan cannot do is refused by `attach`, with the rule it breaks.

local agree = require 'tide.comm.agree'
local tide = require 'tide'
local class = require 'tide.class'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'
local mixing = require 'tide.nn.mixing'
local nn = require 'tide.nn'
local signature = require 'tide.util.signature'
local spread = require 'tide.nn.spread'
local wrap = require 'tide.nn.wrap'
local axis_of = require 'tide.parallel.axis_of'
local context_ = require 'tide.parallel.cp.context'
local cp = require 'tide.parallel.cp'
local cp_attention = require 'tide.parallel.cp.attention'
local cp_batch = require 'tide.parallel.cp.batch'
local documents = require 'tide.parallel.cp.documents'
local fingerprint = require 'tide.parallel.fingerprint'
local mamba_attach = require 'tide.parallel.mamba.attach'

local cp_train = {}

local Attached = { class_name = 'Attached' }
Attached.__index = Attached

-- ---- which layers ----------------------------------------------------------------------------

-- Returns the attention layers in order: { name, module }, and whether there are layers that keep a
-- state.
local function layers_of(op, model)
   local list, mamba = {}, false
   for _, e in ipairs(model:named_modules()) do
      if class.is(e.module, nn.Attention) then
         list[#list + 1] = { name = e.name, module = e.module }
      elseif mamba_attach.keeps_state(e.module) then
         mamba = true
      end
   end
   err.arg_if(#list == 0 and not mamba, op, 'model', 'a model with attention, Mamba-2 or gated '
      .. 'delta net layers', model)
   return list, mamba
end

-- Refuses modules that let tokens see each other and know nothing of other ranks, and those that do
-- not say whether they do.
local function check_mixing(op, model)
   for _, e in ipairs(model:named_modules()) do
      local said, name = mixing(e.module), e.module.class_name
      local where = e.name == '' and 'the model' or ("module '%s'"):format(e.name)
      err.raise_if(said == nil, 'E_ARG', op, "%s (%s) does not say whether its tokens see "
         .. "each other; set %s.mixes = false (each token by itself), 'context' (they do, by "
         .. 'at.context) or true (they do, on one rank)', where, name, name)
      err.raise_if(err.same(said, true), 'E_UNSUPPORTED', op, '%s (%s) lets tokens see each other '
         .. 'on one rank only (%s.mixes = true); its sequence cannot be cut', where, name, name)
      err.arg_if(said and not err.same(said, 'context'), op, name .. '.mixes',
         "false, 'context' or true", said)
   end
end

-- Refuses wraps around attend other than recomputation: what they make of a part of the sequence is
-- not known.
local function check_place(op, handle, layer)
   local m = layer.module
   err.raise_if(wrap.base(m, 'attend') ~= nn.Attention.attend
      or wrap.is_around(m, 'attend', 'recompute'), 'E_UNSUPPORTED', op, "layer '%s' has an "
      .. 'attention call of its own (its attend is replaced or wrapped), which does not use '
      .. 'other ranks; wrap it after attach', layer.name)
   if handle.size > 1 and layer.module.dropout > 0 then
      cp_attention.check_dropout(op, layer.method or handle.method)
   end
end

-- Returns the layers that a key of opts.layers means: an index from 1, or a name or the end of one.
local function chosen(op, list, key)
   if type(key) == 'number' then return { list[err.integer(op, 'layers', key, 1, #list)] } end
   err.type(op, 'layers', key, 'string')
   local found = {}
   for _, layer in ipairs(list) do
      if key == layer.name or layer.name:sub(-#key - 1) == '.' .. key then
         found[#found + 1] = layer
      end
   end
   err.raise_if(#found == 0, 'E_ARG', op, "no attention layer of the model is named '%s'; %s", key,
      list[1] and ("the first is '%s'"):format(list[1].name) or 'it has none')
   return found
end

local windows = {
   'window: window? -- distances { left, right }; by default as the layers have it',
   'sliding_window: integer? >= 1 -- in its place: tokens that each sees, itself included',
   'where window == nil or sliding_window == nil -- window (distances) and sliding_window '
      .. '(tokens): give one of them',
}
local read_layer = signature.options { 'method: cp_method?', windows }

-- Returns the window that options give, in distances or in tokens.
local function window_of(op, o)
   return o.window or nn.window.of_tokens(op, 'sliding_window', o.sliding_window)
end

-- Checks the table of single layers and sets method and window of those it names.
local function choose(op, list, opts)
   for key, v in each(opts.layers or {}) do
      v = read_layer(op, type(v) == 'string' and { method = v } or v)
      for _, layer in ipairs(chosen(op, list, key)) do
         layer.method, layer.window = v.method, window_of(op, v)
      end
   end
   local window = window_of(op, opts)
   for _, layer in ipairs(list) do layer.window = layer.window or window end
end

-- ---- rules -----------------------------------------------------------------------------------

local function check_a2a(op, handle, a2a)
   local used = handle.method == 'a2a+p2p'
   for _, layer in ipairs(handle.layers) do used = used or layer.method == 'a2a+p2p' end
   err.arg_if(used ~= (a2a ~= nil), op, 'a2a', "the ranks of the inner exchange, with 'a2a+p2p' "
      .. 'and only then', a2a)
   if not used then return end
   err.raise_if(handle.size % a2a ~= 0, 'E_ARG', op, 'a2a (%d) x p2p must equal the %d ranks of '
      .. 'the axis', a2a, handle.size)
end

-- ---- agreement -------------------------------------------------------------------------------

-- Returns the settings of handle and layers, in a line.
local function settings(handle, a2a, mamba)
   local list = { handle.layout, handle.method, a2a and 'a2a ' .. a2a or nil }
   list[#list + 1] = mamba and 'mamba ' .. tostring(mamba) or nil
   for i, layer in ipairs(handle.layers) do
      local w = layer.window
      if layer.method or w then
         list[#list + 1] = ('layer %d %s %s'):format(i, layer.method or '', w and
            ('window %s %s'):format(tostring(w[1]), tostring(w[2])) or '')
      end
   end
   return table.concat(list, ', ')
end

-- ---- attaching -------------------------------------------------------------------------------

-- Replaces the computation of the layer by fn(q, k, v, options).
local function wrap_attend(layer, name, fn)
   return layer.module:wrap(name, function(_, _, ...) return fn(...) end,
      { of = 'attend', order = wrap.order.cp, by = 'cp' })
end

local function put(handle, layer)
   local method = layer.method
   local split = method == 'a2a+p2p'
   layer.inner = cp_attention.new { axis = handle.axis, method = method,
      near = split and handle.near or nil, far = split and handle.far or nil }
   layer.wrap = wrap_attend(layer, 'cp', layer.inner)
   layer.before, layer.module.takes_context = layer.module.window, true
   if layer.window then layer.module.window = layer.window end
end

-- Attaches a model to the ranks of an axis, which then share the sequence of each call. axis: of a
-- mesh, a mesh with an axis 'cp', or a communicator. Nothing changes on an axis of one rank.
-- Collective. Returns the handle: cut(batch), whole(fn, ...), restore().
function cp_train.attach(model, axis, opts)
   local op = 'parallel.cp.attach'
   if axis.find then axis = cp.axis_of(op, axis, 'cp') end
   local comm, size, rank = axis_of(op, 'axis', axis)
   err.raise_if(spread.of(model).cp, 'E_STATE', op, 'this model is attached already; restore() the '
      .. 'handle first')
   spread.check_whole(op, model, 'attach it before pipeline_parallel', { pp = true })
   local handle = setmetatable({
      model = model, axis = axis, comm = comm, size = size, rank = rank,
      method = opts.method, layout = opts.layout,
   }, Attached)
   local has_mamba
   handle.layers, has_mamba = layers_of(op, model)
   choose(op, handle.layers, opts)
   check_a2a(op, handle, opts.a2a)
   for _, layer in ipairs(handle.layers) do check_place(op, handle, layer) end
   if size > 1 then check_mixing(op, model) end
   err.arg_if(opts.mamba ~= nil and not has_mamba, op, 'mamba', 'nil, since the model has no '
      .. 'Mamba-2 layers and no gated delta nets', opts.mamba)
   mamba_attach.check_layout(op, opts.mamba, handle.layout)
   if handle.size > 1 then
      agree.check(handle.comm, op, 'E_COMM',
         { { 'settings', settings(handle, opts.a2a, opts.mamba), 'shown' } }, model)
   end
   handle.mamba = has_mamba and mamba_attach.attach(model, axis, { method = opts.mamba })
   if handle.size > 1 then
      if opts.a2a then handle.near, handle.far = cp_attention.split(op, handle.comm, opts.a2a) end
      for _, layer in ipairs(handle.layers) do put(handle, layer) end
   end
   spread.set(model, 'cp', handle)
   return handle
end

-- Restores the model as it was before attach. May be called again.
function Attached:restore()
   if spread.of(self.model).cp ~= self then return end
   spread.set(self.model, 'cp', nil)
   if self.mamba then self.mamba:restore() end
   for _, layer in ipairs(self.layers) do
      if layer.inner then
         layer.wrap.remove()
         layer.module.takes_context, layer.module.window = nil, layer.before
         layer.inner, layer.wrap = nil, nil
      end
   end
end

-- Returns the results of fn(...), in which a call without a context means a whole sequence on this
-- rank: a sample, an evaluation on one rank.
function Attached:whole(fn, ...)
   err.func('parallel.cp.whole', 'fn', fn)
   local function be_alone(on)
      for _, layer in ipairs(self.layers) do
         if layer.inner then layer.inner.context = on and context_.null end
      end
      if self.mamba then self.mamba.alone = on end
   end
   be_alone(true)
   return finally(function() be_alone(nil) end, fn, ...)
end

-- Returns the results of fn(...), in which inner(q, k, v, options) is what the attention layers
-- call.
function Attached:instead(inner, fn, ...)
   local op, handles = 'parallel.cp.instead', {}
   err.func(op, 'inner', inner)
   err.func(op, 'fn', fn)
   for i, layer in ipairs(self.layers) do handles[i] = wrap_attend(layer, 'cp.instead', inner) end
   return finally(function()
      for _, handle in ipairs(handles) do handle.remove() end
   end, fn, ...)
end

-- Returns what the layout 'balanced' balances: the mask of the first attention layer.
local function mask_of(self)
   if not self.layers[1] then return { causal = true, window = { 0, 0 } } end
   local m = self.layers[1].module
   return { causal = m.causal, window = m.window }
end

-- Returns a batch without labels (inference) with some that count nothing, and whether it had none.
local function labelled(batch)
   local like = batch.ids or batch.input_ids or batch.embeds or batch.inputs_embeds
   if batch.labels ~= nil or not tide.is_tensor(like) or like.ndim < 2 then return batch, false end
   local out = copy(batch)
   out.labels = tide.full({ like:size(1), like:size(2) }, -100,
      { dtype = 'i64', device = like.device })
   return out, true
end

-- Returns a batch with what a model reads off whole rows, which parts do not show: where the images
-- of a text lie. Packed streams stay as they are.
local function placed(self, batch, opts)
   local model = self.model
   if not model.placed or opts.use_te then return batch end
   local whole = copy({ ids = batch.ids or batch.input_ids }, copy(batch))
   return model:placed(batch, documents.settled('parallel.cp.cut', whole).index)
end

-- Returns this rank's part of a batch that is alike on all ranks of the axis: a new table with the
-- fields cut by the layout (see batch.lua), positions, and context. count, if it is there, stays
-- that of the whole batch. more: further options of make_cp_batch_and_ctx. Ranks compare their
-- batches in the first layer that attends with the context, which communicates anyway. Without
-- labels, for inference, the part has none either.
function Attached:cut(batch, more)
   err.type('parallel.cp.cut', 'batch', batch, 'table')
   local split = self.method == 'a2a+p2p' and self.size > 1
   local opts = { kind = self.layout, method = self.size > 1 and self.method or nil,
      inner = split and self.near or nil, outer = split and self.far or nil, causal = true }
   if self.layout == 'balanced' then opts.mask = mask_of(self) end
   copy(err.type('parallel.cp.cut', 'more', more or {}, 'table'), opts)
   local whole, bare = labelled(placed(self, batch, opts))
   local context, mine = cp_batch.make_cp_batch_and_ctx(self.axis, whole, opts)
   if context.null then return batch end
   if self.size > 1 and self.comm.transport ~= 'sim' then
      context.batch = fingerprint.batch(batch)
   end
   mine.context, mine.index, mine.packed_seq_ids = context, nil, nil
   if bare then mine.labels = nil end
   return mine
end

function Attached:__tostring()
   return ('%d attention layer%s over %d ranks (%s, %s)'):format(#self.layers,
      #self.layers == 1 and '' or 's', self.size, self.method, self.layout)
end

return signature.doors('parallel.cp', cp_train, {
   attach = { 'model: module; axis: ranks', before = axis_of.in_options { 'axis' }, opts = {
      "method: cp_method = 'ring' -- how queries meet keys: ring, allgather, a2a, "
         .. 'a2a+p2p',
      "layout: 'zigzag' | 'contiguous' | 'document' | 'balanced' = 'zigzag' -- which tokens each "
         .. 'rank holds',
      'a2a: integer? >= 1 -- ranks of the inner exchange of a2a+p2p', windows,
      'layers: table? -- { [index from 1 or name] = method or { method, window, sliding_window } }',
      "mamba: 'auto' | 'hidden' | 'state'? -- method of layers that keep a state; see mamba_cp" } },
})
