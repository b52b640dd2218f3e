-- Stack: a named list of blocks applied in order. `layers[1]`, `#layers` and `ipairs(layers)` are
-- those of a list; names count from 0 by default, as in published checkpoints: `layers['0']` is
-- `layers[1]`. They survive slicing, so a pipeline stage keeps the names of the whole.

local class = require 'tide.class'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local Module = require 'tide.nn.module'

local Stack = class('Stack', Module)
Stack.mixes = false

-- Makes a module that calls a list of blocks in order. names: list of names (default '0', '1',
-- ...).
function Stack:init(blocks, names)
   err.arg_if(type(blocks) ~= 'table' or class.is(blocks, Module) and not class.is(blocks, Stack),
      'nn.Stack', 'blocks', 'a list of modules: nn.Stack { a, b }', blocks)
   Module.init(self)
   self._place = {}               -- name -> index of the block, which lies at that index alone
   for i, block in ipairs(blocks) do self:child(names and names[i] or tostring(i - 1), block) end
end

-- A name is looked up by its place; the rest is the class's.
function Stack:__index(key)
   local place = rawget(self, '_place')
   local i = place and place[key]
   if i then return rawget(self, i) end
   return getmetatable(self)[key]
end

-- Replaces a block by its name; a module under the next index is appended. E_ARG for an index
-- beyond that one, since nothing would run or train the block.
function Stack:__newindex(key, value)
   local place = rawget(self, '_place')
   if place and place[key] then
      rawset(self, place[key], value)
   elseif place and type(key) == 'number' then
      err.integer('nn.Stack', 'index', key, 1, #self + 1)
      self:child(tostring(#self), value)
   else
      Module.__newindex(self, key, value)
   end
end

-- Appends a block under a name of its own; returns it.
function Stack:child(name, block)
   Module.child(self, name, block)
   rawset(self, name, nil)
   self._place[name] = #self + 1
   rawset(self, #self + 1, block)
   return block
end

-- Number of blocks.
function Stack:count() return #self end

-- Block i, 1-based.
function Stack:at(i) return self[i] end

-- A stack of blocks first .. last (1-based, inclusive) that shares them and their names.
function Stack:slice(first, last)
   local blocks, names = {}, {}
   for i = first, last do blocks[#blocks + 1], names[#names + 1] = self[i], self._child[i] end
   return Stack(blocks, names)
end

-- Calls the blocks in order, each with `at`; at.caches[i], if given, becomes at.cache of block i.
function Stack:forward(x, at)
   at = err.type('nn.Stack', 'at', at or {}, 'table')
   local caches, h = at.caches, x
   for i, block in ipairs(self) do
      local here = at
      if caches then here = setmetatable({ cache = caches[i] }, { __index = at }) end
      local y = block(h, here)
      h = rawequal(h, x) and y or private.replace(h, y)
   end
   return h
end
private.note(Stack.forward)

return signature.doors('nn.Stack', Stack, {
   at = 'i: integer in [1, #self]',
   slice = 'first: integer in [1, #self]; last: integer in [first, #self]',
})
