-- The protocol of ranks that are threads (spec/comm/protocol.lua), searched for all programs of two
-- ranks that agree and one that does what it likes, and for 4 ranks.

local protocol = require 'spec.comm.protocol'
local each = require 'tide.util.each'
local S, O, L, X = protocol.SMALL, protocol.OTHER, protocol.LARGE, protocol.SPLIT

local function check(program)
   local _, defects = protocol.search { program = program }
   for what, path in each(defects) do error(what .. ':\n' .. path) end
end

describe('3 ranks and 3 calls, one rank of which makes any calls:', function()
   for _, calls in ipairs(protocol.lists({ S, L, X }, 3)) do
      it(table.concat(calls, ' '), function()
         for _, odd in ipairs(protocol.lists({ S, O, L, X }, 3)) do check { calls, calls, odd } end
      end)
   end
end)

describe('4 ranks and 2 calls:', function()
   for _, calls in ipairs(protocol.lists({ S, L, X }, 2)) do
      it(table.concat(calls, ' '), function() check { calls, calls, calls, calls } end)
   end
end)
