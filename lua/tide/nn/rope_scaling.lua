-- Frequencies of rotary positions under the published ways to stretch them, in doubles: pure
-- functions of numbers. The tables have the keys of published configurations (rope_scaling).

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local sorted_keys = require('tide.util.pretty').sorted_keys

local scaling = {}

local positive, count = ': number >= 1e-9', ': integer >= 1'
local most = 'original_max_position_embeddings'

-- Keys by kind, as fields of a record (see util.signature).
local keys = {
   default = {},
   mrope = {},
   linear = { 'factor' .. positive },
   dynamic = { 'factor' .. positive, most .. ': integer? >= 1' },
   yarn = { 'factor' .. positive, most .. count, 'attention_factor: number? >= 1e-9',
      'beta_fast: number? >= 1e-9', 'beta_slow: number? >= 1e-9', 'mscale: number? >= 0',
      'mscale_all_dim: number? >= 0', 'truncate: boolean?' },                -- 0: as without it
   longrope = { 'short_factor: number[] >= 1e-9', 'long_factor: number[] >= 1e-9',
      most .. count, 'factor: number? >= 1e-9', 'attention_factor: number? >= 1e-9' },
   llama3 = { 'factor' .. positive, 'low_freq_factor' .. positive, 'high_freq_factor' .. positive,
      most .. positive },
}
for kind, rows in each(keys) do
   rows[#rows + 1] = 'mrope_section: integer[]? >= 0'
   rows[#rows + 1] = 'mrope_interleaved: boolean?'
   signature.record('rope_' .. kind, 'a table', rows)
end

local kinds = { 'default', 'mrope', 'linear', 'dynamic', 'yarn', 'longrope', 'llama3' }

-- Returns the kind of a table rope_scaling, whose fields it checks. `finetuned` of published files
-- does not change the numbers. op: the name in errors.
function scaling.check(op, s)
   err.type(op, 'rope_scaling', s, 'table')
   local kind = s.rope_type
   if kind == nil then kind = s.type end
   err.choice(op, 'rope_scaling.rope_type', kind, kinds)
   if s.type ~= nil then err.choice(op, 'rope_scaling.type', s.type, { kind }) end
   signature.check(op, 'rope_scaling', s, 'rope_' .. kind)
   local names, known = {}, { rope_type = true, type = true, finetuned = true }
   for i, row in ipairs(signature.fields('rope_' .. kind)) do
      names[i], known[row.name] = row.name, true
   end
   for _, k in ipairs(sorted_keys(s)) do
      err.raise_if(not known[k], 'E_ARG', op, "argument 'rope_scaling.%s': not a field of the type "
         .. '%s, which has %s', tostring(k), kind, #names > 0 and table.concat(names, ', ')
         or 'none')
   end
   err.arg_if(kind == 'llama3' and s.high_freq_factor <= s.low_freq_factor, op,
      'rope_scaling.high_freq_factor', 'more than low_freq_factor', s.high_freq_factor)
   return kind
end

local function llama3(f, s)
   local wave = 2 * math.pi / f
   local long = s.original_max_position_embeddings / s.low_freq_factor
   local short = s.original_max_position_embeddings / s.high_freq_factor
   if wave < short then return f end
   if wave > long then return f / s.factor end
   local ramp = (s.original_max_position_embeddings / wave - s.low_freq_factor)
      / (s.high_freq_factor - s.low_freq_factor)
   return (1 - ramp) * f / s.factor + ramp * f
end

-- Returns the two of the dim/2 frequencies between which YaRN (arXiv 2309.00071) passes from
-- unscaled to scaled ones.
local function yarn_range(dim, theta, s)
   local function at(rotations)
      return dim * math.log(s.original_max_position_embeddings / (rotations * 2 * math.pi))
         / (2 * math.log(theta))
   end
   local low, high = at(s.beta_fast or 32), at(s.beta_slow or 1)
   if s.truncate ~= false then low, high = math.floor(low), math.ceil(high) end
   low, high = math.max(low, 0), math.min(high, dim - 1)
   return low, low == high and high + 0.001 or high
end

local of = {}

-- By kind: functions of i, from 0.

-- Returns fn(i), the unscaled frequency i.
function of.default(dim, theta)
   return function(i) return theta ^ (-2 * i / dim) end
end

-- The same; the name says that there is an mrope_section.
of.mrope = of.default

-- Returns fn(i), frequency i divided by the factor.
function of.linear(dim, theta, s)
   return function(i) return theta ^ (-2 * i / dim) / s.factor end
end

-- Returns fn(i), frequency i of a base that grows with the sequence beyond the length of training.
function of.dynamic(dim, theta, s, length)
   local trained = s.original_max_position_embeddings
   err.arg_if(trained == nil, 'nn.rope', 'rope_scaling.original_max_position_embeddings',
      'the length of training, with the type dynamic', nil)
   local n = math.max(length or trained, trained)
   local grown = (s.factor * n / trained - (s.factor - 1)) ^ (dim / (dim - 2))
   return of.default(dim, theta * grown)
end

-- Returns fn(i), frequency i: low ones are divided, with a ramp to the high ones, which are not.
function of.yarn(dim, theta, s)
   local low, high = yarn_range(dim, theta, s)
   return function(i)
      local f = theta ^ (-2 * i / dim)
      local divided = math.max(0, math.min(1, (i - low) / (high - low)))
      return f / s.factor * divided + f * (1 - divided)
   end
end

-- Returns fn(i), frequency i divided by a number of its own, from one of two lists.
function of.longrope(dim, theta, s, length)
   local name = length and length > s.original_max_position_embeddings and 'long_factor'
      or 'short_factor'
   if #s[name] ~= dim / 2 then
      err.arg('nn.rope', 'rope_scaling.' .. name, ('%d numbers, one for each frequency'):format(
         dim / 2), s[name])
   end
   return function(i) return 1 / (s[name][i + 1] * theta ^ (2 * i / dim)) end
end

-- Returns fn(i), frequency i of Llama 3.1.
function of.llama3(dim, theta, s)
   return function(i) return llama3(theta ^ (-2 * i / dim), s) end
end

-- Returns by which row of positions (1, 2 or 3) each of the dim/2 frequencies turns, a list, of a
-- table with mrope_section; nil without one. Sections lie one behind the other or, with
-- mrope_interleaved, take turns as far as they reach: height at 1, 4, 7 .., width at 2, 5, 8 ..
-- from 0, and time at all others.
function scaling.rows(dim, s)
   local list = s and s.mrope_section
   if not list then return nil end
   local rows, n, sum = {}, dim / 2, 0
   for _, k in ipairs(list) do sum = sum + k end
   if #list ~= 3 or sum ~= n then
      err.arg_text('nn.rope', 'rope_scaling.mrope_section', ('three counts (time, height, width) '
         .. 'that add up to %d, half of the channels that rotate'):format(n),
         '{ ' .. table.concat(list, ', ') .. ' }')
   end
   for i = 0, n - 1 do
      local turn = i % 3 + 1
      rows[i + 1] = s.mrope_interleaved and (i < 3 * list[turn] and turn or 1)
         or i < list[1] and 1 or i < list[1] + list[2] and 2 or 3
   end
   return rows
end

-- Returns a list of dim/2 frequencies. length: of the sequence, which some kinds depend on;
-- default: no more than the length of training.
function scaling.frequencies(dim, theta, s, length)
   err.integer('nn.rope', 'dim', dim, 2, 65536)
   if dim % 2 ~= 0 then err.arg('nn.rope', 'dim', 'an even head size', dim) end
   err.number('nn.rope', 'theta', theta, 1)
   local kind = s and scaling.check('nn.rope', s) or 'default'
   local list, frequency = {}, of[kind](dim, theta, s, length)
   for i = 0, dim / 2 - 1 do list[i + 1] = frequency(i) end
   return list
end

-- Returns YaRN's multiplier of rotated queries and keys, from its factor.
local function mscale(factor, m) return factor <= 1 and 1 or 0.1 * m * math.log(factor) + 1 end

scaling.mscale = mscale

-- Returns the number that rotated channels of queries, and those of keys, are multiplied by.
function scaling.attention_factor(s)
   local kind = s and (s.rope_type or s.type)
   if kind ~= 'yarn' and kind ~= 'longrope' then return 1 end
   if s.attention_factor then return s.attention_factor end
   if kind == 'yarn' then
      if (s.mscale or 0) > 0 and (s.mscale_all_dim or 0) > 0 then
         return mscale(s.factor, s.mscale) / mscale(s.factor, s.mscale_all_dim)
      end
      return mscale(s.factor, 1)
   end
   if not s.factor or s.factor <= 1 then return 1 end
   return math.sqrt(1 + math.log(s.factor) / math.log(s.original_max_position_embeddings))
end

-- Returns the length of training of kinds whose frequencies depend on the sequence's length; else
-- nil.
function scaling.trained_length(s)
   local kind = s and (s.rope_type or s.type)
   if kind == 'dynamic' or kind == 'longrope' then return s.original_max_position_embeddings end
end

return scaling
