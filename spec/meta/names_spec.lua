-- Names of file-local C functions: one function a name, so that grep, ctags and a stack trace say
-- which one is meant. Names of files: pages that list a folder list all of it.

local lines_of = require('spec.support.files').lines_of
local read = require('spec.support.files').read

-- Folders whose functions still share names, with each other and with the rest.
local exempt = {}

local function is_exempt(path)
   for _, folder in ipairs(exempt) do
      if path:find(folder, 1, true) == 1 then return true end
   end
   return false
end

-- Names of the functions that a C text defines or declares as static, each once.
local function statics(text)
   local names = {}
   text = ('\n' .. text):gsub('__attribute__%s*%b()', '')
   for head in text:gmatch '\nstatic%s+([^;{}=()]*%()' do
      local name = head:match '([%w_]+)%($'
      if name then names[name] = true end
   end
   return names
end

describe('names', function()
   it('of static functions are found', function()
      assert.same({ one = true, two = true }, statics [[
static inline int one(void) { return 1; }
static const char *two(
    int x)
static int table[3] = {0};
int three(void);
]])
   end)

   -- A name that two files need gets the word of its file in front: cache_find, tape_find.
   it('of static functions belong to one file', function()
      local first, found = {}, {}
      local list = lines_of("find core kernels bindings -name '*.c' -o -name '*.h' | sort")
      assert.is_true(#list > 150)
      for _, path in ipairs(list) do
         if not is_exempt(path) then
            for name in pairs(statics(read(path))) do
               if first[name] then
                  found[#found + 1] = name .. ': ' .. first[name] .. ', ' .. path
               end
               first[name] = path
            end
         end
      end
      table.sort(found)
      assert.same({}, found)
   end)
end)

-- The Lua files below a folder, without the ending, from that folder on.
local function files_below(folder)
   local list = lines_of("find " .. folder .. " -name '*.lua' | sort")
   for i, path in ipairs(list) do list[i] = path:sub(#folder + 2, -5) end
   return list
end

-- The files of a folder that no first cell of a table on a page names: "| `a`, `b` | ...".
local function unlisted(page, folder)
   local listed, missing = {}, {}
   for cell in ('\n' .. read(page)):gmatch '\n|([^|]*)' do
      for name in cell:gmatch '`([^`]+)`' do
         listed[name:gsub('^tide/ffi/', ''):gsub('%.lua$', '')] = true
      end
   end
   for _, name in ipairs(files_below(folder)) do
      if not listed[name] then missing[#missing + 1] = ('%s: %s/%s'):format(page, folder, name) end
   end
   return missing
end

describe('tables of files', function()
   it('list each file of their folder', function()
      assert.is_true(#files_below 'lua/tide/parallel' > 40)
      assert.same({}, unlisted('bindings/README.md', 'bindings/tide/ffi'))
      assert.same({ 'lua/guide/parallel.md: lua/tide/parallel/init' },
         unlisted('lua/guide/parallel.md', 'lua/tide/parallel'))
   end)
end)
