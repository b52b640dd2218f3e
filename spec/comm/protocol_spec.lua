-- The protocol of ranks that are threads: no order of steps and no moment of a failure leaves a
-- rank waiting or gives it data of another call. spec/deep/protocol_spec.lua tries more programs.

local protocol = require 'spec.comm.protocol'
local each = require 'tide.util.each'
local S, O, L, X = protocol.SMALL, protocol.OTHER, protocol.LARGE, protocol.SPLIT

local function check(program)
   local states, defects = protocol.search { program = program }
   for what, path in each(defects) do error(what .. ':\n' .. path) end
   return states
end

describe('3 ranks that make 3 equal calls', function()
   it('end, whatever fails whenever', function()
      local states = 0
      for _, calls in ipairs(protocol.lists({ S, L, X }, 3)) do
         states = states + check { calls, calls, calls }
      end
      assert.is_true(states > 4e5, states)  -- the search has searched
   end)
end)

describe('3 ranks, one of which makes another call', function()
   it('end, whatever fails whenever', function()
      for at = 1, 3 do
         for _, kind in ipairs { O, L, X } do
            local odd = { S, S, S }
            odd[at] = kind
            check { { S, S, S }, odd, { S, S, S } }
         end
      end
   end)
end)

-- The search finds faults that are put into the protocol; the first two were in the code.
describe('the search finds', function()
   for fault, row in each {
      ['write first'] = { S, 'deadlock', 'foreign payload', 'false mismatch' },
      ['failure first'] = { L, 'deadlock', 'gone operands' },
      ['close always'] = { L, 'deadlock', 'gone operands' },
      ['one page'] = { S, 'foreign payload' },
      ['no exit'] = { L, 'gone operands' },
   } do
      it(('%s: %s'):format(fault, table.concat(row, ', ', 2)), function()
         local k = row[1]
         local _, defects = protocol.search { fault = fault, program = { { k, k, k }, { k, k, k },
            { k, k, k } } }
         for i = 2, #row do assert.is_string(defects[row[i]], row[i]) end
      end)
   end
end)
