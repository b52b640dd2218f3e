-- The guides run: the Lua blocks of a page are one program, and it prints what the page says.
--
-- A page that holds `<!-- run -->` or `<!-- run: -n 2 -->` is a program; the options are those of
-- `tide run`. Its ```text blocks, one after the other, are the expected output of rank 0. A page
-- that holds `<!-- prompt: -n 4 -->` is a session of `tide repl`: in its ```session blocks `> ` and
-- `. ` begin what is typed, other lines are printed. Blocks in other languages (sh, c) are not run.

local files = require 'spec.support.files'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'

local folder = 'lua/guide'

local function pages()
   local list, pipe = {}, assert(io.popen('ls ' .. folder .. '/*.md'))
   for path in pipe:lines() do list[#list + 1] = path end
   pipe:close()
   return list
end

-- options (nil: no program), the program, the expected output.
local function read(path)
   local file = assert(io.open(path))
   local text = file:read '*a'
   file:close()
   local options = text:match '<!%-%- run:? ?(.-) ?%-%->'
   local code, output = {}, {}
   for kind, block in text:gmatch '\n```(%l+)\n(.-)\n```' do
      if kind == 'lua' then code[#code + 1] = block end
      if kind == 'text' then output[#output + 1] = block end
   end
   return options, table.concat(code, '\n') .. '\n', table.concat(output, '\n') .. '\n'
end

-- options (nil: no session), what is typed, the expected output.
local function read_session(path)
   local text = files.read(path)
   local typed, output = {}, {}
   for block in text:gmatch '\n```session\n(.-)\n```' do
      for line in block:gmatch '[^\n]+' do
         local input = line:match '^[>.] (.*)$'
         table.insert(input and typed or output, input or line)
      end
   end
   return text:match '<!%-%- prompt: ?(.-) ?%-%->', table.concat(typed, '\n') .. '\n',
      table.concat(output, '\n') .. '\n'
end

-- A text without numbers of lines in files, which change with every line above.
local function unnumbered(text) return (text:gsub('%.lua:%d+%)', '.lua:)')) end

-- Output and errors of a session, in order; files are named below the tree.
local function session(options, typed)
   return tmp.with(function(dir)
      files.write(dir .. '/typed', typed)
      local text = recipe.shell(('%s repl %s < %s/typed'):format(recipe.program, options, dir))
      return (text:gsub('%(/[^\n ]-/(bindings/)', '(%1'))
   end)
end

-- Options of other programs: mpirun, pkg-config, tensorboard.
local foreign = { ['--hostfile'] = true, ['--cflags'] = true, ['--libs'] = true,
   ['--logdir'] = true }

-- What the program and all recipes say about their options, as one text.
local function helps()
   local list = { recipe.shell(recipe.program .. ' help') }
   for _, topic in ipairs { 'run', 'repl' } do
      list[#list + 1] = recipe.shell(('%s help %s'):format(recipe.program, topic))
   end
   for _, command in ipairs { 'score', 'export', 'runs', 'plot' } do
      list[#list + 1] = recipe.shell(('%s %s --help'):format(recipe.program, command))
   end
   for _, path in ipairs(files.lines_of 'ls recipes/*.lua') do
      list[#list + 1] = recipe.ranks(1, path:match '[^/]+$' .. ' --help')
   end
   return table.concat(list, '\n') .. '\n'
end

-- The options that a text names and `known` does not, each as '--name'.
local function unknown(text, known)
   local list = {}
   for dash, name in text:gmatch '%f[%-](%-%-)(%l[%w%._%-]*%w)' do
      local pattern = (dash .. name):gsub('_', '-'):gsub('%p', '%%%0')
      if not foreign[dash .. name] and not known:find(pattern .. '%f[^%w%-]') then
         list[#list + 1] = dash .. name
      end
   end
   return list
end

describe('the guide', function()
   it('and the page of recipes name options that a recipe or the program has', function()
      local known = helps()
      assert.same({ '--mesh.pd' }, unknown('`--mesh.dp_shard 2 --mesh.pd 2 --resume`.', known))
      local list = pages()
      list[#list + 1] = 'recipes/README.md'
      for _, path in ipairs(list) do
         if not path:find 'reference' then
            assert.same({}, unknown(files.read(path), known), path)
         end
      end
   end)

   for _, path in ipairs(pages()) do
      local options, code, output = read(path)
      local how, typed, said = read_session(path)
      if how then
         it(path .. ' is a session that prints what it says', function()
            assert.equal(unnumbered(said), unnumbered(session(how, typed)))
         end)
      elseif options then
         it(path .. ' runs and prints what it says', function()
            local text, status = recipe.source(code, options)
            assert.equal(0, status, text)
            assert.equal(output, text)
         end)
      else
         it(path .. ' has no block of Lua that is not run', function()
            assert.equal('\n', code)
         end)
      end
   end
end)
