-- Programs of specs of fully_shard, on ranks.

local ranks = require 'spec.support.ranks'

-- Names, dtypes, reductions of the collectives on `comm` that fn makes.
local watch = [[
   local function watch(comm, fn)
      local before = comm:history()
      local last = before[#before] and before[#before].seq or -1
      fn()
      local list = {}
      for _, h in ipairs(comm:history()) do
         if h.seq > last then list[#list + 1] = h end
      end
      return list
   end
]]

-- Runs source text with `case`, `tide`, `world`, `watch` in reach on n ranks; the first values.
return function(n, body, ...)
   local text = "local tide, world = require 'tide', require 'tide.comm'.world()\n"
      .. "local case = require 'spec.parallel.fsdp_case'\n" .. watch .. body
   return ranks.run(n, text, ...)
end
