-- Comments: the names and files that they mention exist, and some phrasings are not used.
--
-- Phrasings are looked for in specs and recipes, too.

local lines_of = require('spec.support.files').lines_of
local read = require('spec.support.files').read

local function files(where, ...)
   local names = {}
   for _, p in ipairs { ... } do names[#names + 1] = "-name '*." .. p .. "'" end
   return lines_of('find ' .. where .. ' \\( ' .. table.concat(names, ' -o ') .. ' \\) -type f')
end

local c_files = files('core kernels bindings', 'c', 'h', 'def', 'cu', 'cuh')
local lua_files = files('bindings lua', 'lua')

-- Files whose comments are read for phrasings alone.
local more_c_files = files('spec recipes', 'c', 'h', 'cpp')
local more_lua_files = files('spec recipes kernels/bench', 'lua')

-- Calls fn(text, line) for each comment of a C text.
local function each_c_comment(text, fn)
   text = text:gsub('"[^"\n]*"', function(s) return (' '):rep(#s) end)
   for at, comment in text:gmatch '()(/%*.-%*/)' do
      local _, n = text:sub(1, at):gsub('\n', '')
      fn(comment, n + 1)
   end
   local n = 0
   for line in text:gmatch '([^\n]*)\n' do
      n = n + 1
      local comment = line:match '//(.*)'
      if comment then fn(comment, n) end
   end
end

-- The same of a Lua file, line by line.
local function each_lua_comment(text, fn)
   local n = 0
   for line in text:gmatch '([^\n]*)\n' do
      n = n + 1
      local comment = line:match '^%s*%-%-(.*)' or line:match '%s%-%- (.*)'
      if comment then fn(comment, n) end
   end
end

-- Phrasings that comments do without. The subject is a word of the field: "the caller", "rank 2".
local banned = {
   { 'who', '%f[%a][Ww]ho%f[%A]' }, { 'whom', '%f[%a][Ww]hom%f[%A]' },
   { 'whoever', '[Ww]hoever' }, { 'nobody', '[Nn]obody' }, { 'somebody', '[Ss]omebody' },
   { 'is none', '%f[%a]is none%f[%A]' }, { 'are none', '%f[%a]are none%f[%A]' },
   { 'of then', '%f[%a]of then%f[%A]' }, { 'in vain', '%f[%a]in vain%f[%A]' },
   { 'twice is once', '[Tt]wice is once' }, { 'layer N', '[Ll]ayer %d' },
   { 'the one idea', '[Tt]he one idea' }, { 'anew', '%f[%a]anew%f[%A]' },
   { 'tells', '%f[%a]tells%f[%A]' }, { 'comes', '%f[%a]comes%f[%A]' },
   { 'stands', '%f[%a]stands%f[%A]' }, { 'has not,', '%f[%a]ha[sv]e? not[,.;)]' },
}

-- The first banned phrasing of a comment, or nil. A phrase may go on in the next line.
local function phrasing(comment)
   local text = comment:gsub('\n%s*%*?%s*', ' ')
   for _, b in ipairs(banned) do
      if text:find(b[2]) then return b[1] end
   end
end

-- Every word of C code, comments left out.
local function words_of_code()
   local words = {}
   local list = files('core kernels bindings spec', 'c', 'h', 'def', 'cu', 'cuh', 'cpp')
   for _, path in ipairs(list) do
      for word in read(path):gsub('/%*.-%*/', ' '):gmatch '[%w_]+' do words[word] = true end
   end
   return words
end

describe('comments', function()
   it('are found', function()
      local seen = {}
      each_c_comment('int x; /* a "b" */\nchar *s = "/* no */"; // c\n/* d\n * e */\n',
         function(text, line) seen[#seen + 1] = line .. text:gsub('%s+', ' ') end)
      assert.same({ '1/* a */', '3/* d * e */', '2 c' }, seen)
      assert.equal('is none', phrasing 'a tensor is\n * none of ours')
      assert.equal('who', phrasing 'Who waits')
      assert.is_nil(phrasing 'the whole')
   end)

   -- Examples of names.
   local examples = { ['tide__grad_x'] = true, ['tide_X_init'] = true, ['tide_X_'] = true,
      ['tide__x'] = true, ['tide_x'] = true, ['tide__recompute_name'] = true }

   it('of C name what exists: tide_x and tide__x', function()
      local words, found = words_of_code(), {}
      local starts = {} -- a name may stand for all that begin with it: tide_comm_
      for word in pairs(words) do
         for at in word:gmatch '()_' do starts[word:sub(1, at)] = true end
      end
      for _, path in ipairs(c_files) do
         each_c_comment(read(path), function(text, line)
            for name in text:gmatch '%f[%w_]tide_[%w_]+' do
               if not words[name] and not starts[name] and not examples[name] then
                  found[#found + 1] = ('%s:%d names %s'):format(path, line, name)
               end
            end
         end)
      end
      assert.same({}, found)
   end)

   it('of C name files that exist', function()
      local all = '\n' .. table.concat(lines_of 'git ls-files --cached --others --exclude-standard',
         '\n') .. '\n'
      local found = {}
      for _, path in ipairs(c_files) do
         each_c_comment(read(path), function(text, line)
            for name, ext in text:gmatch '%f[%w_/%.]([%w_][%w_/]*%.(%a+))%f[^%w_%(]' do
               local known = ext == 'c' or ext == 'h' or ext == 'def' or ext == 'cu'
                  or ext == 'cuh'
               if known and not all:find('[/\n]' .. name:gsub('%.', '%%.') .. '\n') then
                  found[#found + 1] = ('%s:%d names %s'):format(path, line, name)
               end
            end
         end)
      end
      assert.same({}, found)
   end)

   it('of Lua functions begin with a verb: "Returns", "Blocks until"', function()
      local found = {}
      for _, path in ipairs(lua_files) do
         local first, n = nil, 0          -- the first line of the comment above
         for line in read(path):gmatch '([^\n]*)\n' do
            n = n + 1
            local text = line:match '^%s*%-%- ?(.*)'
            local is_function = line:find '^%s*function ' or line:find '^%s*local function '
            if first and is_function and not first:find '^%u%l+s%f[^%w]' then
               found[#found + 1] = ('%s:%d: %s'):format(path, n, first)
            end
            first = text and (first or text) or nil
         end
      end
      assert.same({}, found)
   end)

   it('use none of the banned phrasings', function()
      local found = {}
      local function look(path, each)
         each(read(path), function(text, line)
            local what = phrasing(text)
            if what then found[#found + 1] = ('%s:%d: "%s"'):format(path, line, what) end
         end)
      end
      for _, list in ipairs { c_files, more_c_files } do
         for _, path in ipairs(list) do look(path, each_c_comment) end
      end
      for _, list in ipairs { lua_files, more_lua_files } do
         for _, path in ipairs(list) do look(path, each_lua_comment) end
      end
      table.sort(found)
      assert.same({}, found)
   end)
end)
