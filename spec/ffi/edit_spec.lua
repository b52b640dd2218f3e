-- Line editing: what keys do, what is drawn, and what the history keeps.

local each = require 'tide.util.each'
local edit = require 'tide.ffi.edit'
local files = require 'spec.support.files'

-- A terminal that understands what the editor writes: rows of characters.
local function screen(columns)
   local rows, row, column = { {} }, 1, 1
   local function put(c)
      rows[row] = rows[row] or {}
      rows[row][column] = c
      column = column + 1
   end
   local function write(text)
      local i = 1
      while i <= #text do
         local n, what = text:match('^\27%[%??(%d*)(%a)', i)
         if n then
            i = i + #text:match('^\27%[%??%d*%a', i)
            if what == 'A' then row = row - tonumber(n)
            elseif what == 'C' then column = column + tonumber(n)
            elseif what == 'J' then
               for r = row, #rows do
                  rows[r] = r == row and { unpack(rows[r], 1, column - 1) } or {}
               end
            end
         else
            local c = text:match('^[%z\1-\127\192-\255][\128-\191]*', i)
            i = i + #c
            if c == '\r' then column = 1
            elseif c == '\n' then row = row + 1
            elseif c ~= '\7' then put(c) end
            assert(column <= columns + 1 and row >= 1, 'outside of the screen')
         end
      end
   end
   local function text()
      local out = {}
      for r = 1, #rows do
         for c = 1, #rows[r] do rows[r][c] = rows[r][c] or ' ' end
         out[r] = table.concat(rows[r])
      end
      return (table.concat(out, '\n'):gsub('%s+$', ''))
   end
   return write, text, function() return row, column end
end

-- Types bytes at an editor; returns what it read, how it ended, and the screen.
local function type_in(bytes, opts)
   opts = opts or {}
   local write, text, place = screen(opts.width or 80)
   local i = 0
   opts.write, opts.columns = write, function() return opts.width or 80 end
   opts.byte = function()
      i = i + 1
      return i <= #bytes and bytes:sub(i, i) or nil
   end
   local editor = edit.open(opts)
   local got, how = editor:read(opts.prompt or '> ', opts.more)
   return got, how, text(), place, editor
end

local up, down, left, right = '\27[A', '\27[B', '\27[D', '\27[C'

describe('an editor', function()
   it('does what keys say', function()
      for keys, want in each {
         ['abc\r'] = 'abc', ['abc' .. left .. left .. 'X\r'] = 'aXbc', ['ab\127c\r'] = 'ac',
         ['abc\1X\5Y\r'] = 'XabcY', ['abc\27[H\27[3~\r'] = 'bc', ['one two\23\r'] = 'one ',
         ['one two\27b\27bX\r'] = 'Xone two', ['one two\1\27fX\r'] = 'oneX two',
         ['one two\1\11ab\25\r'] = 'abone two', ['abc' .. left .. '\21\r'] = 'c',
         ['ab\20\r'] = 'ba', ['héllo' .. left .. left .. left .. '\127X\r'] = 'hXllo',
         ['日本語' .. left .. '\127\r'] = '日語', ['a\27\rb\r'] = 'a\nb',
         ['\255\128x\r'] = 'x',
         ['ab\1\4\4\r'] = '', ['one two\1\27d\r'] = ' two', ['a\27[1;5Dx\27[99~\r'] = 'xa',
         ['\27[200~x\r\ny\tz\27[201~!\r'] = 'x\ny   z!' } do
         assert.equal(want, (type_in(keys)))
      end
   end)

   it('ends at Ctrl-D of an empty text, at Ctrl-C, and with the input', function()
      local got, how = type_in '\4'
      assert.is_nil(got or how)
      got, how = type_in 'abc\3'
      assert.is_nil(got)
      assert.equal('interrupt', how)
      got, how = type_in 'abc'
      assert.is_nil(got or how)
   end)

   it('takes several lines until the text is whole', function()
      local opts = { accepts = function(text) return text:find 'end' ~= nil end, more = '.. ' }
      local got, _, shown = type_in('do\rx\rend\r', opts)
      assert.equal('do\nx\nend', got)
      assert.equal('> do\n.. x\n.. end', shown)
      got = type_in('do\rx\rend' .. up .. up .. 'X' .. down .. '!\r\r' .. down .. '\5\r', opts)
      assert.matches('X', got:match '^[^\n]*', 1, true)
   end)

   it('draws long texts over several rows, wide characters whole', function()
      math.randomseed(5)
      for width = 5, 12 do
         local parts = {}
         for i = 1, 40 do parts[i] = ({ 'a', 'é', 'z' })[math.random(3)] end
         local text = table.concat(parts)
         local _, _, shown = type_in(text .. left:rep(25) .. right:rep(7) .. '\r',
            { width = width })
         assert.equal('> ' .. text, (shown:gsub('\n', '')))
         for row in shown:gmatch '[^\n]+' do
            assert.is_true(select(2, row:gsub('[^\128-\191]', '')) <= width)
         end
      end
      local got = type_in('日本語日本語日本語' .. left:rep(4) .. 'x\r', { width = 7 })
      assert.equal('日本語日本x語日本語', got)
   end)

   it('completes a word as far as all agree, then lists', function()
      local opts = { complete = function(before)
         local word, list = before:match '%w*$', {}
         for _, name in ipairs { 'alpha', 'alps', 'beta' } do
            if name:sub(1, #word) == word then list[#list + 1] = name end
         end
         return list, word
      end }
      assert.equal('x alp', (type_in('x a\t\r', opts)))
      assert.equal('beta', (type_in('b\t\r', opts)))
      local _, _, shown = type_in('al\t\tpx\r', opts)
      assert.matches('alpha  alps', shown, 1, true)
      assert.equal('f { alpha', (type_in('f { \ta\r', { complete = function(before)
         return before == 'f { ' and { 'alph' } or {}, ''
      end })))
      opts.complete = function(before)
         return before:match '%S$' and { 'q' } or {}, before
      end
      assert.equal('   x ', (type_in('\tx\127x \r', opts)))
      assert.equal('x    y', (type_in('x \ty\r', opts)))
      assert.equal('q', (type_in('q\t\r', opts)))
      opts.complete = function() error 'broken' end
      assert.equal('q', (type_in('q\t\r', opts)))
   end)

   it('searches for what is typed after Ctrl-R', function()
      local path = os.tmpname()
      local function searched(keys)
         files.write(path, 'x = 1\nprint(x)\nx = 2\nback\\\\slash\n')
         local got, how, shown = type_in(keys, { history = path })
         return got or how or shown
      end
      for keys, want in each { ['rint'] = 'print(x)', ['x ='] = 'x = 2', ['x =\18'] = 'x = 1',
         ['x =\18\18'] = 'x = 1', ['x = 3\1271'] = 'x = 1', ['x = 7'] = '',
         ['x =\18\5!'] = 'x = 1!', ['x =\27[H-'] = '-x = 2', ['nowhere\7ab'] = 'ab',
         ['k\\'] = 'back\\slash', ['x =\127\127\127rint'] = 'print(x)', ['x =\3'] = 'interrupt',
         ['\18\18y'] = '', ['\18bac'] = 'back\\slash' } do
         assert.equal(want, searched('\18' .. keys .. '\r'), keys)
      end
      assert.equal('kept', searched 'kept\18\7\r')
      assert.equal('print(x)', searched 'pri\18nt\r')
      assert.equal("(search 'x =') x = 2", searched '\18x =')
      assert.equal("(nowhere 'x =q')", searched '\18x =q')
      assert.equal("(search '')", searched '\18')
      os.remove(path)
   end)

   it('recalls lines, those that begin with the text first typed, and searches', function()
      local path = os.tmpname()
      os.remove(path)
      for _, entry in ipairs { 'x = 1', 'print(x)', 'x = 2', 'for\ndo\nend', 'back\\slash' } do
         type_in((entry:gsub('\n', '\27\r')) .. '\r', { history = path })
      end
      assert.equal('x = 1\nprint(x)\nx = 2\nfor\\ndo\\nend\nback\\\\slash\n', files.read(path))
      local function recalled(keys) return (type_in(keys .. '\r', { history = path })) end
      assert.equal('back\\slash', recalled(up))
      assert.equal('x = 2', recalled('x' .. up))
      assert.equal('x = 1', recalled('x' .. up .. up .. up))
      assert.equal('x', recalled('x' .. up .. down))
      assert.equal('print(x)', recalled '(x\18')
      assert.equal('for\ndo\nend', recalled '\ndo\18' == nil and '' or recalled('for' .. up))
      os.remove(path)
   end)

   it('moves the last entries of a long history to a new file: a kill loses none', function()
      local path, lines = os.tmpname(), {}
      for i = 1, 4001 do lines[i] = 'x = ' .. i .. '\n' end
      files.write(path, table.concat(lines))
      assert.equal(0, os.execute(('ln %s %s.old'):format(path, path)))
      assert.equal('x = 4001', (type_in(up .. '\r', { history = path })))
      assert.equal(table.concat(lines, '', 2002), files.read(path))
      assert.equal(table.concat(lines), files.read(path .. '.old'))
      os.remove(path)
      os.remove(path .. '.old')
   end)

   it('shows a line of the history whose last character is not whole', function()
      local path = os.tmpname()
      files.write(path, 'a\195\nb\226\130\n')
      assert.equal('b\226\130', (type_in(up .. '\r', { history = path })))
      assert.equal('a\195', (type_in(up .. up .. '\r', { history = path })))
      os.remove(path)
   end)

   it('reads a history of libedit, and works without a file', function()
      local path = os.tmpname()
      files.write(path, '_HiStOrY_V2_\nx\\040=\\0401\nlast\n')
      assert.equal('x = 1', (type_in(up .. up .. '\r', { history = path })))
      assert.equal('x = 1\nlast\nx = 1\n', files.read(path))
      os.remove(path)
      for _, file in ipairs { '/no/such/folder/file', '/' } do
         assert.equal('a', (type_in('a\r', { history = file })))
      end
   end)
end)
