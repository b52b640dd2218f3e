-- A host may set any locale: numbers in texts keep their point, names of variables their letters.

local child = require 'spec.support.child'
local files = require 'spec.support.files'
local tmp = require 'spec.support.tmp'

local function name(c) return ('<U%04X>'):format(c) end

-- Names of characters from a to b but for one, as localedef lists them.
local function list(a, b, but, fn)
   local names = {}
   for c = a:byte(), b:byte() do if c ~= but:byte() then names[#names + 1] = fn(c) end end
   return table.concat(names, ';')
end

local function other_case(by)
   return function(c) return ('(%s,%s)'):format(name(c), name(c + by)) end
end

-- Makes the locale `odd` below dir: a decimal comma as in German, an i without an upper case as in
-- Turkish. Nothing but localedef is needed, which is part of the C library.
local function make_locale(dir)
   local map = { '<code_set_name> ASCII\n<mb_cur_min> 1\n<mb_cur_max> 1\n<escape_char> /\nCHARMAP' }
   for c = 0, 127 do map[#map + 1] = ('%s /x%02x CODE'):format(name(c), c) end
   files.write(dir .. '/map', table.concat(map, '\n') .. '\nEND CHARMAP\n')
   files.write(dir .. '/source', ('comment_char %%\nescape_char /\nLC_CTYPE\nupper %s\nlower %s\n'
      .. 'toupper %s\ntolower %s\nEND LC_CTYPE\nLC_NUMERIC\ndecimal_point "<U002C>"\n'
      .. 'thousands_sep ""\ngrouping -1\nEND LC_NUMERIC\n'):format(list('A', 'Z', '?', name),
      list('a', 'z', '?', name), list('a', 'z', 'i', other_case(-32)),
      list('A', 'Z', 'I', other_case(32))))
   os.execute(('cd %s && localedef -c --no-archive -f ./map -i ./source ./odd >/dev/null 2>&1')
      :format(dir))
end

local there = os.execute 'command -v localedef >/dev/null' == 0

-- Prints what a program says that has set the locale.
local function run(text, env)
   return tmp.with(function(dir)
      make_locale(dir)
      local out, status = child("assert(os.setlocale 'odd') " .. text,
         { env = ('%s LOCPATH=%s'):format(env or '', dir) })
      assert.equal(0, status, out)
      return out
   end)
end

describe('a locale of the host', function()
   if not there then return pending 'localedef is missing' end

   it('leaves the decimal points of tensors and messages', function()
      assert.equal('tensor f32 [2] cpu {1.5, 2.25}\nexpected lo <= hi, got 2.5 and 1.5\n',
         run [[
            local tide = require 'tide'
            local x = tide.tensor { 1.5, 2.25 }
            print(x)
            print(select(2, pcall(x.clamp, x, 2.5, 1.5)).message)
         ]])
   end)

   it('leaves the names of environment variables', function()
      assert.equal('0\n', run([[
         local tide = require 'tide'
         local ctx = tide.open { read_env = true }
         print(ctx:param 'cuda_device')
      ]], 'TIDE_CUDA_DEVICE=0'))
   end)
end)
