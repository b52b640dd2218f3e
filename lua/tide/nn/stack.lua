-- Stack: a named list of blocks applied in order. Names are numbers from 0 by default, as in
-- published checkpoints, and survive slicing, so a pipeline stage keeps the names of the whole.

local tide = require 'tide'
local class = require 'tide.class'
local err = require 'tide.util.err'
local Module = require 'tide.nn.module'

local Stack = class('Stack', Module)

-- blocks: list of modules. names: list of names (default '0', '1', ...).
function Stack:init(blocks, names)
   err.type('nn.Stack', 'blocks', blocks, 'table')
   Module.init(self)
   self.recompute = 0             -- n > 0: every n-th block is recomputed in backward
   for i, block in ipairs(blocks) do
      self:child(names and names[i] or tostring(i - 1), block)
   end
end

-- Number of blocks.
function Stack:count() return #self._child end

-- Block i, 1-based.
function Stack:at(i)
   err.integer('nn.Stack.at', 'i', i, 1, #self._child)
   return self[self._child[i]]
end

-- A stack of blocks first .. last (1-based, inclusive) that shares them and their names.
function Stack:slice(first, last)
   err.integer('nn.Stack.slice', 'first', first, 1, #self._child)
   err.integer('nn.Stack.slice', 'last', last, first, #self._child)
   local blocks, names = {}, {}
   for i = first, last do
      blocks[#blocks + 1], names[#names + 1] = self:at(i), self._child[i]
   end
   return Stack(blocks, names)
end

-- at: handed to every block; at.caches[i], if given, becomes at.cache of block i.
function Stack:forward(x, at)
   at = err.type('nn.Stack', 'at', at or {}, 'table')
   local caches = at.caches
   for i, name in ipairs(self._child) do
      local block, here = self[name], at
      if caches then here = setmetatable({ cache = caches[i] }, { __index = at }) end
      if self.recompute > 0 and i % self.recompute == 0 and tide.is_grad_enabled() then
         x = tide.checkpoint(function(h) return block(h, here) end, x)
      else
         x = block(x, here)
      end
   end
   return x
end

return Stack
