-- Loading a state into a module: every difference is found before anything is changed.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local spread = require 'tide.nn.spread'

local state_of = {}

-- Compares shapes by name, of a model and of a state for it. Returns three sorted lists: missing,
-- unexpected, shape.
function state_of.differences(own, given)
   local lists = { missing = {}, unexpected = {}, shape = {} }
   for name, shape in each(own) do
      if not given[name] then
         table.insert(lists.missing, name)
      elseif not dims.equal(shape, given[name]) then
         table.insert(lists.shape, ('%s (model %s, state %s)')
            :format(name, dims.text(shape), dims.text(given[name])))
      end
   end
   for name in each(given) do
      if not own[name] then table.insert(lists.unexpected, name) end
   end
   for _, list in each(lists) do table.sort(list) end
   return lists
end

local function listed(list)
   if #list <= 8 then return table.concat(list, ', ') end
   return table.concat(list, ', ', 1, 8) .. (', ... %d more'):format(#list - 8)
end

-- Raises the differences as one error. kinds: the lists, of the three, that count.
function state_of.refuse(op, lists, kinds, before)
   local parts = {}
   for _, kind in ipairs(kinds) do
      if #lists[kind] > 0 then
         local label = kind == 'shape' and 'shapes differ' or kind
         parts[#parts + 1] = label .. ': ' .. listed(lists[kind])
      end
   end
   if #parts > 0 then err.raise('E_SHAPE', op, '%s%s', before or '', table.concat(parts, '; ')) end
end

local function shapes(op, tensors)
   local list = {}
   for name, t in each(tensors) do
      if not tide.is_tensor(t) then
         err.arg(op, ("state['%s']"):format(tostring(name)), 'a tensor', t)
      end
      list[name] = t.shape
   end
   return list
end

-- Returns a state without the rotary frequencies that old files of Llama hold; tide computes them.
local function without_frequencies(state, own)
   local out = {}
   for name, t in each(state) do
      if own[name] or not tostring(name):find '%f[%w]rotary_emb%.inv_freq$' then out[name] = t end
   end
   return out
end

-- Does what Module:load_state_dict describes.
function state_of.load(self, state, opts)
   local op = 'nn.Module.load_state_dict'
   err.type(op, 'state', state, 'table')
   opts = err.options(op, opts, { 'strict' })
   err.raise_if(spread.of(self).inside, 'E_STATE', op, 'the model is sharded: its shards would '
      .. 'keep their values; load before fully_shard, or a checkpoint with tide.train')
   local own = self:state_dict()
   state = without_frequencies(state, own)
   local lists = state_of.differences(shapes(op, own), shapes(op, state))
   state_of.refuse(op, lists,
      opts.strict == false and { 'shape' } or { 'missing', 'unexpected', 'shape' })
   self._seed = nil
   tide.no_grad(function()
      for name, t in each(own) do
         if state[name] then t:copy_(state[name]) end
      end
   end)
   return lists
end

return state_of
