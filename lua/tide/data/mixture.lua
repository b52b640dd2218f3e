-- Several data sets by weights: which of them gives each window or row of a step.
--
--    local parts = { { source = code, weight = 0.7 }, { source = prose, weight = 0.3 } }
--    local mix = tide.data.mixture { parts = parts, seq = 512, batch = 8, seed = 1 }
--    run { train = mix.source, sampler = mix, ... }
--
-- Item k of the endless order is taken from the part that lags most behind its share of k, as in
-- Megatron. No part is ever a whole item ahead of its share; one of several may lag by little more
-- than an item. A part that is used up begins again, in another order. The global batch does not
-- depend on the number of ranks.

local err = require 'tide.util.err'
local packed = require 'tide.data.packed'
local sampler = require 'tide.data.sampler'
local signature = require 'tide.util.signature'
local tokens = require 'tide.data.tokens'

local op = 'data.mixture.new'

local mixture = {}

local Mixture = {}
Mixture.__index = Mixture
Mixture.ahead = true                      -- make reads data alone (see train.ahead)

-- Returns the sampler of one part, a window or row at a time; its order has the part's number.
local function part_sampler(o, i, part)
   local opts = { seq = o.seq, batch = 1, seed = o.seed + i - 1 }
   if part.cu then
      opts.cu, opts.cp, opts.val_cu = part.cu, o.cp, o.val_cu
      opts.source, opts.val_source = part.source.images and part.source, o.val_source
      return packed.new(opts)
   end
   opts.count = part.source.count
   err.raise_if(opts.count <= o.seq, 'E_ARG', op, "argument 'parts[%d]': a window needs %d tokens, "
      .. 'its source has %d; give it more, or a smaller seq', i, o.seq + 1, opts.count)
   return sampler.new(opts)
end

-- Returns the sum of weights, and whether items are rows.
local function weigh(parts)
   local total, rows = 0, 0
   for _, part in ipairs(parts) do
      total, rows = total + part.weight, rows + (part.cu and 1 or 0)
   end
   err.arg_if(total <= 0 or total == math.huge, op, 'parts', 'weights with a finite sum above 0',
      total)
   err.raise_if(rows > 0 and rows < #parts, 'E_ARG', op, "argument 'parts': either all parts have "
      .. 'cu (rows of documents) or no part has (windows), got %d of %d', rows, #parts)
   return total, rows > 0
end

-- Makes a sampler over parts at the beginning of its order. parts: a list of
-- { source, weight, cu }; with cu (see data.packed) its items are rows of whole documents, without
-- it windows.
function mixture.new(opts)
   local self = setmetatable(opts, Mixture)
   local total, has_rows = weigh(self.parts)
   self.position, self.samplers, self.counts, self.shares, self.offsets = 0, {}, {}, {}, {}
   local sources, at = {}, 0
   for i, part in ipairs(self.parts) do
      self.samplers[i], self.counts[i] = part_sampler(self, i, part), 0
      self.shares[i], self.offsets[i], sources[i] = part.weight / total, at, part.source
      at = at + part.source.count
   end
   self.source = tokens.join(sources)
   if has_rows then self.make = packed._Packed.make end
   return self
end

-- Returns the part of the next item.
local function choose(self)
   local best, most = nil, -math.huge
   for i, share in ipairs(self.shares) do
      local lag = share * (self.position + 1) - self.counts[i]
      if lag > most + 1e-9 then best, most = i, lag end
   end
   return best
end

-- Returns an item of a part by the places of the joined source.
local function moved(item, offset)
   if type(item) == 'number' then return item + offset end
   local row = {}
   for i, piece in ipairs(item) do
      row[i] = { piece[1] + offset, piece[2], piece[3], piece[4] }
   end
   return row
end

-- Returns the items of this rank in the next global batch: starts of windows, or rows.
function Mixture:next()
   local each, mine = self.batch / self.size, {}
   for k = 0, self.batch - 1 do
      local i = choose(self)
      local item = self.samplers[i]:next()[1]
      self.counts[i], self.position = self.counts[i] + 1, self.position + 1
      if math.floor(k / each) == self.rank then mine[#mine + 1] = moved(item, self.offsets[i]) end
   end
   return mine
end

-- Returns the rows of the documents held out (val_cu); see packed.held_out.
function Mixture:held_out(limit) return self.samplers[1]:held_out(limit) end

-- Returns the passes through the part that was seen most often.
function Mixture:epochs()
   local most = 0
   for _, part in ipairs(self.samplers) do most = math.max(most, part:epochs()) end
   return most
end

-- Returns the state that restore needs to continue from here: plain data.
function Mixture:state()
   local parts = {}
   for i, part in ipairs(self.samplers) do
      parts[i] = { count = self.counts[i], share = self.shares[i], state = part:state() }
   end
   return { position = self.position, parts = parts }
end

-- Continues where a state was taken; the global batch and the number of ranks may differ.
function Mixture:restore(state)
   local where = 'data.mixture.restore'
   local parts = err.type(where, 'state.parts', state.parts, 'table')
   err.raise_if(#parts ~= #self.samplers, 'E_ARG', where, 'the state was saved with %d parts, this '
      .. 'run has %d', #parts, #self.samplers)
   for i, part in ipairs(parts) do
      err.raise_if(math.abs(part.share - self.shares[i]) > 1e-12, 'E_ARG', where, 'the state was '
         .. 'saved with share %g for part %d, this run has %g', part.share, i, self.shares[i])
   end
   for i, part in ipairs(parts) do
      self.samplers[i]:restore(part.state)
      self.counts[i] = err.integer(where, 'count', part.count, 0)
   end
   self.position = err.integer(where, 'position', state.position, 0)
end

signature.record('mixture_part', 'a table { source =, weight = }', { 'source: source',
   'weight: number >= 0' })
signature.doors('data.mixture', Mixture, { restore = 'state: table' })
return signature.doors('data.mixture', mixture, { new = { opts = {
   'parts: mixture_part[] -- a list of { source, weight, cu }',
   'seq: integer >= 1 -- tokens of a window or row',
   'batch: integer >= 1 -- windows or rows of a step, over all ranks',
   sampler.options,
   'val_cu: table? -- cumulative lengths of the documents that are held out, if items are rows',
   'val_source: source? -- their tokens; images of them are not cut',
   'cp: integer >= 1 = 1 -- ranks that a row will be cut over',
   "where #parts > 0 -- argument 'parts': expected at least one { source, weight }, got none" } } })
