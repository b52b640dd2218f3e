-- An optimiser step inside a captured step (tide.cuda.graph): recorded once, and counted at each
-- replay with the rate and the step number of that replay.

local tide = require 'tide'
local err = require 'tide.util.err'
local graph = require 'tide.ffi.graph'

local captured = {}

-- Whether a step is being recorded.
captured.is_recording = graph.is_capturing

-- Makes the tensor from which captured steps read lr and step number of their replay, a row for
-- each bucket there may be. An earlier step makes it: a replay writes over what is made while
-- capturing.
function captured.prepare(self)
   local entries = self:entries()
   local first = entries[1]
   if self.rates or not first or first.param.device ~= 'cuda' then return end
   self.rates = tide.empty({ #entries, 2 }, { dtype = 'f64', device = 'cuda' })
end

local function set_rates(self, bucket, row)
   local rates = self.rates:select(1, row)
   bucket.rates, bucket.lr, bucket.count = rates, rates:select(1, 1), rates:select(1, 2)
end

-- Copies the numbers of the next replay to the device; counts nothing.
local function write_rates(self, op, state, list)
   err.raise_if(self.state ~= state, 'E_STATE', op, 'the state was loaded after this step was '
      .. 'captured, and the step would update the old state; capture the step again')
   local lr = err.number(op, 'lr', self:next_lr(), 0)
   self.last_lr = lr
   tide.no_grad(function()
      for _, b in ipairs(list) do
         b.lr:fill_(lr * b.group.lr_scale)
         b.count:fill_(b.states[1].step + 1)
      end
   end)
end

-- Enqueues a step while a graph is captured; each replay counts it.
function captured.record(self, op, opts)
   err.raise_if(opts.lr ~= nil, 'E_STATE', op, 'a captured step would repeat this lr; leave it '
      .. 'out: the rate of the optimiser is read before each replay')
   for _, entry in ipairs(self:entries()) do
      err.raise_if(entry.param.grad ~= nil and not (self.state[entry.name] and self.rates),
         'E_STATE', op, "parameter '%s' has no state yet, and a captured step would make it at "
         .. 'each replay; run the step once before it is captured', entry.name)
   end
   local list, lists = {}, {}
   for _, group in ipairs(self.groups) do
      for _, bucket in ipairs(self:_buckets(group)) do
         bucket.group = group
         list[#list + 1], lists[#lists + 1] = bucket, bucket.states
         set_rates(self, bucket, #list)
         self:update(group, bucket, 0, opts)
      end
   end
   local state, keepers = self.state, self.keepers
   for _, s in ipairs(keepers) do s:updated() end
   graph.on_replay(function() write_rates(self, op, state, list) end, function()
      self:_add_steps(lists, 1)
      for _, s in ipairs(keepers) do s:updated() end -- an evaluation between has gathered the old
   end)
end

return captured
