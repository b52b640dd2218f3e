-- Order-2 entropy of bytes: H(next | previous two) in nats, from counts.
--
-- It is the loss per byte of a perfect table of byte trigrams on the text that was counted. A model
-- whose validation loss is well below it has learnt more than local spelling.

local each = require 'tide.util.each'
local signature = require 'tide.util.signature'

local entropy = {}

local function add(counts, text)
   local a, b = text:byte(1, 2)
   for i = 3, #text do
      local c = text:byte(i)
      local key = (a * 256 + b) * 256 + c
      counts[key] = (counts[key] or 0) + 1
      a, b = b, c
   end
end

-- Returns the order-2 entropy of a list of strings, or nil without a trigram. No trigram spans two
-- strings.
function entropy.order2(texts)
   local counts, context, total = {}, {}, 0
   for _, text in ipairs(texts) do add(counts, text) end
   for key, n in each(counts) do
      local pair = math.floor(key / 256)
      context[pair] = (context[pair] or 0) + n
      total = total + n
   end
   if total == 0 then return nil end
   local sum = 0
   for key, n in each(counts) do
      sum = sum - n * math.log(n / context[math.floor(key / 256)])
   end
   return sum / total
end

return signature.doors('data.entropy', entropy, { order2 = 'texts: string[]' })
