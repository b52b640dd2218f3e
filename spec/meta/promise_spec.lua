-- Every sentence of the guides that promises something is held by a test; promise.lua names it.

local files = require 'spec.support.files'
local promise = require 'spec.meta.promise'
local sentence = require 'spec.meta.sentence'

local table_ = 'spec/meta/promise.lua'
local each = pairs

local function pages()
   local list = files.lines_of('ls README.md */README.md core/*.md core/comm/README.md '
      .. 'lua/guide/*.md | sort -u')
   local found = {}
   for _, path in ipairs(list) do
      -- the reference is written from the comments of functions
      if path ~= 'recipes/README.md' and path ~= 'lua/guide/reference.md' then
         found[#found + 1] = path
      end
   end
   return found
end

local function begins(text, words)
   local plain = sentence.plain(text) .. ' '
   return plain:sub(1, #words + 1) == words .. ' '
end

-- The row of a sentence, or nil.
local function row_of(rows, s)
   for _, row in ipairs(rows) do
      local there
      if row.section then there = s.section == row.section
      else there = begins(s.text, sentence.plain(row[1])) end
      if there then return row end
   end
end

-- How many sentences a row covers.
local function uses(list, row)
   local n = 0
   for _, s in ipairs(list) do
      if row_of({ row }, s) then n = n + 1 end
   end
   return n
end

-- The path of a spec as promise.lua names it, or nil if there is no such file.
local function path_of(name)
   for _, path in ipairs { name, name .. '_spec.lua', name .. '.lua' } do
      local f = io.open('spec/' .. path)
      if f then
         f:close()
         return 'spec/' .. path
      end
   end
end

-- nil, or why SPEC and TEST of a row are no test.
local function missing(spec, test)
   local path = path_of(spec)
   if not path then return ('no file spec/%s_spec.lua'):format(spec) end
   local text = files.read(path)
   if path:find '%.c$' then
      return not text:find('cmocka_unit_test(' .. test .. ')', 1, true)
         and ('%s has no test %s'):format(path, tostring(test)) or nil
   end
   for _, quote in ipairs { "'", '"' } do
      if text:find('[%s%(]' .. quote .. (test or ''):gsub('%p', '%%%0')) then return nil end
   end
   return ("%s has no test '%s'"):format(path, tostring(test))
end

-- What is wrong with the tests of a row: a list of texts.
local function faults(row)
   if row.definition then return {} end
   if not row[2] then return { 'it names neither a test nor a definition' } end
   local list = {}
   for i = 2, #row, 2 do
      local why = 'a test is missing'
      if row[i + 1] then why = missing(row[i], row[i + 1]) end
      list[#list + 1] = why
   end
   return list
end

local function none(list, what)
   assert.equal('', table.concat(list, '\n'), what)
end

describe('what the guides promise', function()
   it('is read across lines, from lists and tables, without code', function()
      local list = sentence.list(table.concat({ '# Head', 'It is *never*', 'lost. `every:2` is it.',
         '', '- Always (so', '  it is). **No.** End', '| a | every one |', '| `x` | the same |', '',
         '    never code', '', '```', 'never', '```', '<!-- never -->' }, '\n'))
      local got = {}
      for i, s in ipairs(list) do
         got[i] = sentence.plain(s.text) .. (sentence.promises(s.text, s.is_row) and '!' or '')
      end
      assert.same({ 'it is never lost!', 'every 2 is it', 'always so it is!', 'no!', 'end',
         'a every one!', 'x the same' }, got)
      assert.equal('Head', list[1].section)
   end)

   it('is held by a test, or is no promise', function()
      local list, n = {}, 0
      for _, path in ipairs(pages()) do
         for _, s in ipairs(sentence.list(files.read(path))) do
            if sentence.promises(s.text, s.is_row) then
               n = n + 1
               if not row_of(promise[path] or {}, s) then
                  list[#list + 1] = ('%s: "%s"'):format(path, s.text)
               end
            end
         end
      end
      none(list, ('no test is named for these sentences (words like never, every, no). Add a row '
         .. "{ 'the first words', 'folder/file', 'name of a test' } to %s, or reword the sentence; "
         .. "{ 'the first words', definition = 'why' } if it promises nothing"):format(table_))
      assert.is_true(n > 100)
   end)

   it('is still there, once', function()
      local list = {}
      for path, rows in each(promise) do
         local page = sentence.list(files.read(path))
         for _, row in ipairs(rows) do
            local n, name = uses(page, row), row.section or row[1]
            if n == 0 or n > 1 and not row.section then
               list[#list + 1] = ("%s: '%s' begins %d sentences"):format(path, name, n)
            end
         end
      end
      none(list, ('rows of %s whose sentence was reworded or removed: give its words of today, or '
         .. 'delete the row'):format(table_))
   end)

   it('names tests that are there', function()
      local list = {}
      for path, rows in each(promise) do
         for _, row in ipairs(rows) do
            for _, why in ipairs(faults(row)) do
               list[#list + 1] = ("%s: '%s': %s"):format(path, row.section or row[1], why)
            end
         end
      end
      none(list, ('rows of %s whose test was renamed or removed: give its name of today'):format(
         table_))
   end)
end)
