-- The door of every public function: each object that it wants is given null, released, of another
-- kind and of another context; the call is refused with E_ARG and a record, and nothing crashes.

local child = require 'spec.support.child'

describe('a public function', function()
   it('refuses each wrong handle with E_ARG and a record', function()
      local out, status = child 'assert(loadfile "spec/support/door_program.lua")()'
      local wrong = {}
      for line in out:gmatch '[^\n]+' do
         if not line:find '^> ' then wrong[#wrong + 1] = line end
      end
      -- after a crash the last line says which call it was
      assert.equal(0, status, table.concat(wrong, '\n') .. '\n' .. (out:match '([^\n]*)\n*$' or ''))
      local ncall = tonumber(out:match '(%d+) calls, 0 wrong')
      assert.is_true(ncall > 1000, out:match '[^\n]*\n*$')
   end)
end)
