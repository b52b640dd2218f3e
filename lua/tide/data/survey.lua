-- Checks the ids of a token source against a vocabulary before training.
--
-- Sources up to 64 MiB are read whole, larger ones at 64 places. Pure Lua.

local err = require 'tide.util.err'
local little = require 'tide.util.little'
local signature = require 'tide.util.signature'
local tokens = require 'tide.data.tokens'

local survey = {}

-- Returns the largest of the ids in text, of `width` bytes each, and its place (from 0).
local function largest_of(text, width)
   local most, at = -1, 0
   for i = 0, #text / width - 1 do
      local id = little.read(text, i * width + 1, width)
      if id > most then most, at = id, i end
   end
   return most, at
end

-- Returns the largest id that is seen, and the token that has it (from 0); nil of an empty source.
function survey.largest(source)
   local most, at = -1, nil
   tokens.each_piece(source, function(start, text)
      local id, place = largest_of(text, source.width)
      if id > most then most, at = id, start + place end
   end)
   return at and most, at
end

-- Raises E_ARG for `op` if the source, its argument `name`, has an id that a vocabulary of `size`
-- does not have.
function survey.check(op, name, source, size)
   local id, at = survey.largest(signature.check(op, name, source, 'source'))
   if not id or id < signature.check(op, 'vocab_size', size, 'integer >= 1') then return end
   err.raise('E_ARG', op, "argument '%s': token %.0f is id %.0f; the model's vocab_size is %.0f "
      .. '(--vocab), so ids are 0 to %.0f', name, at, id, size, size - 1)
end

return survey
