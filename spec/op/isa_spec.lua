-- The op specs at every instruction set that this machine has below its own: TIDE_ISA names one.

local build = os.getenv 'TIDE_BUILD' or 'build'
local luajit = os.getenv 'TIDE_LUAJIT' or 'luajit'

-- Output of a command with the environment's TIDE_ISA replaced.
local function at_level(level, command)
   local set = ("TIDE_ISA='%s' TIDE_BUILD='%s' "):format(level, build)
   local pipe = assert(io.popen(set .. command .. ' 2>&1'))
   local text = pipe:read '*a'
   pipe:close()
   return text
end

local function open_at(level)
   local script = [["dofile 'spec/support/helper.lua' require('tide').zeros { 1 } print 'opened'"]]
   return at_level(level, luajit .. ' -e ' .. script)
end

local is_arm = jit.arch == 'arm64'
local lower = is_arm and { 'neon' } or { 'base', 'avx2', 'avx512', 'avx512_bf16' }
local known = is_arm and 'neon or neon_bf16' or 'base, avx2, avx512, avx512_bf16 or amx'

describe('TIDE_ISA', function()
   if os.getenv 'TIDE_ISA' then
      pending 'is set: these are the op specs at a level'
      return
   end

   local files = { 'all', 'attention', 'scan', 'loss', 'fp8', 'nf4', 'nf4_part',
      'nf4_grouped', 'conv1d', 'round', 'grouped', 'gated_delta' }
   for i, name in ipairs(files) do files[i] = ('spec/op/%s_spec.lua'):format(name) end
   local without = "--filter-out=' on ref' "
   -- The machine's own level is that of the op specs themselves.
   local most = known:match '[%w_]+$'
   local own = open_at(most):match 'this processor has ([%w_]+)'
   for _, level in ipairs(lower) do
      if level ~= own and open_at(level):find('opened', 1, true) then
         it('= ' .. level .. ' leaves every op within its bounds', function()
            local command = luajit .. ' /usr/bin/busted --output=TAP ' .. without
               .. table.concat(files, ' ')
            local text = '\n' .. at_level(level, command)
            local _, passed = text:gsub('\nok ', '')
            assert.is_nil(text:match '\nnot ok [^\n]*\n#[^\n]*\n#[^\n]*')
            assert.is_true(passed > 2000, text:sub(-500))
         end)
      end
   end

   it('that is no level, or one that the machine does not have, is an error', function()
      assert.matches("TIDE_ISA is 'sse', expected " .. known, open_at 'sse', 1, true)
      local text = open_at(most)
      if not text:find('opened', 1, true) then
         assert.matches(('TIDE_ISA asks for %s, but this processor has'):format(most), text, 1,
            true)
      end
   end)
end)
