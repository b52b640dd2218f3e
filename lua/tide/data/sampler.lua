-- Which windows of a token source make up which step: a pure function of (seed, position).
--
-- The tokens of an epoch are cut into windows of `seq` from an offset that depends on the epoch,
-- and the windows are visited in an order that a keyed permutation of their numbers gives (a
-- Feistel network walked until it lands inside the range), so no list is stored. Global batch k
-- is windows k*batch .. (k+1)*batch - 1 of this endless order; rank r of n takes the r-th n-th of
-- it. The global batch therefore does not depend on the number of ranks, and the whole state is
-- the seed and the position.

local bit = require 'bit'
local err = require 'tide.util.err'
local hash = require 'tide.util.hash'
local signature = require 'tide.util.signature'

local sampler = {}

-- Returns a permutation of 0 .. n-1 under a key, as a function fn(i).
function sampler.permutation(n, seed, epoch)
   local half = 1
   while 4 ^ half < n do half = half + 1 end
   local side = 2 ^ half
   local key = hash.mix(seed, epoch)
   local function round(x, r)
      return hash.scramble(x + 0x9e3779b9 * r % 2^32 + key) % side
   end
   local function once(i)
      local a, b = math.floor(i / side), i % side
      for r = 1, 6 do a, b = b, bit.bxor(a, round(b, r)) % 2^32 end
      return a * side + b
   end
   return function(i)
      repeat i = once(i) until i < n
      return i
   end
end

local Sampler = {}
Sampler.__index = Sampler

-- Makes a sampler at the beginning of its order.
function sampler.new(opts)
   local self = setmetatable(opts, Sampler)
   self.position = 0
   self.shifted = self.count >= 2 * self.seq
   self.windows = math.floor((self.count - (self.shifted and self.seq or 1)) / self.seq)
   return self
end

local function order_of(self, epoch)
   if self.epoch ~= epoch then
      self.epoch = epoch
      self.order = sampler.permutation(self.windows, self.seed, epoch)
      self.offset = self.shifted and hash.mix(self.seed, epoch, 1) % self.seq or 0
   end
   return self.order, self.offset
end

local function start_of(self, place)
   local order, offset = order_of(self, math.floor(place / self.windows))
   return offset + order(place % self.windows) * self.seq
end

-- Returns the first token of the window at a place of the endless order.
function Sampler:start_of(place) return start_of(self, place) end

-- Starts of this rank's windows of the next global batch.
function Sampler:next()
   local each = self.batch / self.size
   local first = self.position + self.rank * each
   local list = {}
   for i = 1, each do list[i] = start_of(self, first + i - 1) end
   self.position = self.position + self.batch
   return list
end

-- Returns the passes through the data so far.
function Sampler:epochs() return self.position / self.windows end

-- Returns the state that restore needs to continue from here: plain data.
function Sampler:state()
   return {
      seed = self.seed, position = self.position, seq = self.seq, count = self.count,
   }
end

-- Raises if a state and this run differ in one of the values `names`. before: the values of a state
-- that does not store them.
function sampler._check_state(op, names, state, now, before)
   for _, k in ipairs(names) do
      if state[k] ~= now[k] and (state[k] ~= nil or now[k] ~= before[k]) then
         err.raise('E_ARG', op, 'the state was saved with %s = %s, this run has %s', k,
            tostring(state[k]), tostring(now[k]))
      end
   end
end

-- Continues where a state was taken; the global batch and the number of ranks may differ.
function Sampler:restore(state)
   local op = 'data.sampler.restore'
   sampler._check_state(op, { 'seq', 'count', 'seed' }, state, self, {})
   self.position = err.integer(op, 'position', state.position, 0)
end

-- Options of every sampler but the size of its batch.
sampler.options = {
   'seed: integer >= 0 = 0 -- decides the order',
   'size: integer >= 1 = 1 -- ranks with data of their own',
   'rank: integer in [0, size) = 0 -- which of them this is',
   'where batch % size == 0 -- batch ({batch}) must be a multiple of the {size} data-parallel '
      .. 'ranks',
}

signature.doors('data.sampler', Sampler, {
   start_of = 'place: integer >= 0', restore = 'state: table',
})
return signature.doors('data.sampler', sampler, {
   permutation = 'n: integer >= 1; seed: integer >= 0; epoch: integer >= 0',
   new = { opts = {
      'count: integer >= 0 -- tokens in the source',
      'seq: integer >= 1 -- tokens of a window',
      'batch: integer >= 1 -- windows of a step, over all ranks',
      sampler.options,
      'where count > seq -- a window needs {seq + 1} tokens, the data has {count}' } },
})
