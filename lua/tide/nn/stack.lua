-- Stack: a named list of blocks applied in order. `layers[1]`, `#layers` and `ipairs(layers)` are
-- those of a list; names count from 0 by default, as in published checkpoints: `layers['0']` is
-- `layers[1]`. They survive slicing, so a pipeline stage keeps the names of the whole.

local class = require 'tide.class'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local Module = require 'tide.nn.module'
local norms = require 'tide.nn.norm'

local Stack = class('Stack', Module)
Stack.mixes = false
Stack.holds_parts = true

-- Makes a module that calls a list of blocks in order. names: list of names (default '0', '1',
-- ...).
function Stack:init(blocks, names)
   err.arg_if(type(blocks) ~= 'table' or class.is(blocks, Module) and not class.is(blocks, Stack),
      'nn.Stack', 'blocks', 'a list of modules: nn.Stack { a, b }', blocks)
   Module.init(self)
   self._place = {}               -- name -> index of the block, which lies at that index alone
   for i, block in ipairs(blocks) do self:child(names and names[i] or tostring(i - 1), block) end
end

-- Returns a block by its name, or a member of the class.
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

-- Returns the number of blocks.
function Stack:count() return #self end

-- Returns block i, which counts from 1.
function Stack:at(i) return self[i] end

-- Appends blocks first .. last and their names to two lists.
local function add_part(self, first, last, blocks, names)
   for i = first, last do blocks[#blocks + 1], names[#names + 1] = self[i], self._child[i] end
   return blocks, names
end

-- Returns a stack of blocks first .. last (1-based, inclusive) that shares them and their names.
function Stack:slice(first, last) return Stack(add_part(self, first, last, {}, {})) end

-- Removes all blocks but those of a list of ranges { first, last }, which keep their names.
function Stack:_keep(ranges)
   local blocks, names = {}, {}
   for _, r in ipairs(ranges) do add_part(self, r[1], r[2], blocks, names) end
   for i = #self, 1, -1 do rawset(self, i, nil) end
   self._child, self._place = names, {}
   for i, block in ipairs(blocks) do
      rawset(self, i, block)
      self._place[names[i]] = i
   end
end

-- Returns `at` for block i: its at.cache is at.caches[i]. at.last_rows is at.rows of the last
-- block, if that block picks rows. is_read: something reads the whole output of the block.
local function here(self, at, i, last, is_read)
   local caches, block = at.caches, self[i]
   local rows = i == last and not is_read and at.last_rows or nil
   if rows and not (block.picks_rows and block:picks_rows()) then rows = nil end
   if not (caches or rows) then return at end
   return setmetatable({ cache = caches and caches[i], rows = rows }, { __index = at })
end

-- Returns the sum of a block's addends, whose memory it may reuse.
local function added(h, more, owned)
   if not more then return h end
   local sum = h + more
   private.spend(more)
   if owned then private.spend(h) end
   return sum
end

-- Returns fn of the sum of a block's addends and of `beside`, whether the caller may overwrite it,
-- and fn's further result.
local function followed(fn, h, more, owned, beside)
   local sum, is_own = added(h, more, owned), owned or more ~= nil
   local y, aside = fn(sum, beside)
   if rawequal(y, sum) then return y, is_own, aside end
   if is_own then private.spend(sum) end
   return y, true, aside
end

-- Runs the blocks. Returns two addends of the result, h and more (nil: h is the result), and
-- whether the caller may overwrite h. Where no hook or wrap is between two blocks, the norm of the
-- second one computes the sum between them. The last result is a list of further results of the
-- functions at.after, in order; no block gets these. at.blocks: { first, last } of the blocks that
-- run; all of them by default.
function Stack:addends(x, at, beside)
   local h, more, owned, asides = x, nil, false, {}
   at = err.type('nn.Stack', 'at', at or {}, 'table')
   local after, range = at.after, at.blocks or { 1, #self }
   if after or at.blocks then
      at = copy(at)
      at.after, at.blocks = nil, nil
   end
   for i = range[1], range[2] do
      local block, fn = self[i], after and after[i]
      if block.takes_addends and block:takes_addends() then
         local given, had = h, owned and not more
         h, more, owned = block:addends(h, more, owned, here(self, at, i, range[2], fn))
         if had and not rawequal(h, given) then private.spend(given) end
      else
         local sum = added(h, more, owned)
         owned = owned or more ~= nil
         h, more = block(sum, here(self, at, i, range[2], fn)), nil
         if owned then private.spend(sum) end
         owned = true
      end
      if fn then
         h, owned, asides[#asides + 1] = followed(fn, h, more, owned, beside)
         more = nil
      end
   end
   return h, more, owned, asides
end
private.note(Stack.addends)

-- Calls the blocks in order, each with `at`; at.caches[i], if given, becomes at.cache of block i.
-- at.after[i], if given, is called with the output of block i and the tensor `beside`, or nil. It
-- returns the input of the next block and, or nil, a tensor: those are further results, in order.
-- So gradients to and from a module that is run again in backward go through its call.
-- at.last_rows: index [K] of the rows that are needed of the result (see nn.rows), which is then
-- [1, K, C] if the last block picks rows.
function Stack:forward(x, at, beside)
   local h, more, owned, asides = self:addends(x, at, beside)
   return added(h, more, owned), unpack(asides)
end
private.note(Stack.forward)

-- Returns norm(self(x, at, beside)). The norm computes the last sum, too, if no hook or wrap needs
-- it before.
function Stack:normed(norm, x, at, beside)
   if self.forward ~= Stack.forward or self._call ~= Module._call
      or not norms.takes_addends(norm) then
      local y = self(x, at, beside)
      return rawequal(y, x) and norm(y) or private.replace(y, norm(y))
   end
   local h, more, owned = self:addends(x, at, beside)
   local y, sum = norm(more or h, more and h)
   private.spend(more, sum)
   if owned then private.spend(h) end
   return y
end
private.note(Stack.normed)

return signature.doors('nn.Stack', Stack, {
   at = 'i: integer in [1, #self]',
   slice = 'first: integer in [1, #self]; last: integer in [first, #self]',
})
