-- The hosts of recipes/embed, from an installation: C, Python, Neovim, nginx, work in steps.
-- A host that is missing is pending, by name.

local files = require 'spec.support.files'
local install = require 'spec.support.install'
local rhyme = require 'spec.support.rhyme'
local tmp = require 'spec.support.tmp'
local tide = require 'tide'

local build, quote, run, exists = install.build, install.quote, install.run, install.exists

local function there(command) return os.execute(command .. ' >/dev/null 2>&1') == 0 end

local plain = tide.build_info():find('sanitizers: none', 1, true) ~= nil
local python = plain and (there '/usr/bin/python3 -c "import numpy"') and '/usr/bin/python3'
local modules = '/usr/lib/nginx/modules/'

-- it, or pending with the reason.
local function it_if(condition, missing)
   return condition and it or function(text) pending(text .. ' (' .. missing .. ')') end
end

describe('work in steps', function()
   local poll = require 'recipes.embed.poll'

   it('ends a step at the first seam behind its time', function()
      local seams = 0
      local task = poll.start(function(pause)
         for _ = 1, 5 do
            seams = seams + 1
            pause()
         end
         return 'done'
      end)
      assert.equal(0, seams)
      for i = 1, 5 do
         assert.is_true(task:step(0))
         assert.equal(i, seams)
      end
      assert.is_false(task:step(0))
      assert.is_false(task:step(0))
      assert.equal('done', task.value)
      local whole = poll.start(function(pause)
         for _ = 1, 5 do pause() end
      end)
      assert.is_false(whole:step(1e6))
   end)

   it('keeps answers apart that are under way together, and recording on between them', function()
      local bytes, sample = tide.data.bytes, tide.train.sample
      local model = tide.model.qwen3({ vocab_size = bytes.vocab_size, hidden_size = 16,
         head_dim = 8, num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 1,
         intermediate_size = 16, max_position_embeddings = 64 }, { seed = 1 })
      local function start(seed)
         return poll.start(function(pause)
            return select(2, sample.generate(model, 'abc', { tokenizer = bytes, tokens = 12,
               seed = seed, on_token = function() pause() end })).text
         end)
      end
      local tasks = { start(1), start(2) }
      local more
      repeat
         more = tasks[1]:step(0)
         assert.is_true(tide.is_grad_enabled())
         more = tasks[2]:step(0) or more
         assert.is_true(tide.is_grad_enabled())
      until not more
      for seed, task in ipairs(tasks) do
         local alone = start(seed)
         assert.is_false(alone:step(1e6))
         assert.equal(alone.value, task.value)
      end
   end)

   it('passes on what the work raises, once', function()
      local task = poll.start(function() tide.ones { -1 } end)
      local ok, e = pcall(task.step, task, 5)
      assert.is_false(ok)
      assert.equal('E_ARG', tide.error_of(e).code)
      assert.is_false(task:step(5))
   end)
end)

describe('a host', function()
   it_if(plain and exists(build .. '/libtide_host.so'), 'no libtide_host')('in C trains in C and '
      .. 'in Lua, and nothing is left', function()
      install.with(function(prefix, dir)
         run(('mv %s %s/moved'):format(quote(prefix), dir))   -- shells split paths with a space
         local out = run(('cd %s/moved/share/tide/recipes/embed && '
            .. 'export PKG_CONFIG_PATH=$(echo %s/moved/lib*/pkgconfig) && '
            .. 'cc -Wall -Wextra -Werror host.c -o %s/host $(pkg-config --cflags --libs tide-host) '
            .. '-Wl,-rpath,$(pkg-config --variable=libdir tide) && env -u LUA_PATH %s/host')
            :format(dir, dir, dir, dir))
         assert.matches('^in C: loss [%d.]+e%-0%d after 100 steps\n'
            .. 'in C: %[4, 2%] and %[4, 2%] do not multiply[^\n]*\nin C: 0 of %d+ blocks are left\n'
            .. 'in Lua: loss below 0.001 after 300 steps, between many events\n$', out)
      end)
   end)

   it_if(python, 'no /usr/bin/python3 with numpy')('in Python shares arrays with numpy', function()
      local out = run(('%s recipes/embed/host.py %s/libtide.so'):format(python, quote(build)))
      assert.matches('^largest difference from the true weights: %de%-0[5-9]\n'
         .. 'refused: matmul: [^\n]*%(E_SHAPE%)\n$', out)
      out = run(([[PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=recipes/embed %s -c '
import numpy, host
ctx = host.Context()
dropped = ctx.tensor(numpy.ones(2, numpy.float32))
host.LIB.tide_tensor_drop(dropped.handle)
frozen = numpy.frombuffer(bytes(8), numpy.float32)
for call in dropped.array, lambda: ctx.tensor(frozen):
    try:
        print(call())
    except host.Error as e:
        print(e)' %s/libtide.so]]):format(python, quote(build)))
      assert.equal('array: the bytes of the tensor were dropped\n'
         .. 'tensor: expected an array that may be written, as ops in place do\n', out)
   end)

   it_if(plain and there 'nvim --version', 'no nvim')('in Neovim completes the line', function()
      install.with(function(prefix, dir)
         files.write(dir .. '/try.vim', ([[
            let g:tide_model = '%s'
            luafile %s/share/tide/recipes/embed/neovim.lua
            call setline(1, ['one two three four', 'one two th', 'last'])
            set virtualedit=onemore
            call cursor(2, 11)
            TideComplete
            lua vim.wait(60000, function() return #vim.fn.getline(2) > 10 end)
            write %s/out
            quitall!
         ]]):format(rhyme.write(dir .. '/model'), prefix:gsub(' ', '\\ '), dir))
         run(('env -u LUA_PATH timeout 100 nvim --headless -u NONE -i NONE -S %s/try.vim'):format(
            quote(dir)))
         assert.equal('one two three four\none two three four\nlast\n', files.read(dir .. '/out'))
      end)
   end)

   it_if(plain and there 'nvim --version', 'no nvim')('in Neovim says what is wrong, and goes on '
      .. 'with another model, behind the character under the cursor', function()
      tmp.with(function(dir)
         files.write(dir .. '/try.vim', ([[
            luafile recipes/embed/neovim.lua
            let g:tide_model = '%s/nowhere'
            TideComplete
            lua vim.wait(60000, function() return vim.fn.execute('messages'):find('tide:') end)
            redir! > %s/said
            silent messages
            redir END
            let g:tide_model = '%s'
            call setline(1, 'one two th')
            normal $
            lua << EOF
            vim.wait(60000, function()
               vim.cmd 'TideComplete'
               vim.wait(1000, function() return #vim.fn.getline(1) > 10 end)
               return #vim.fn.getline(1) > 10
            end)
EOF
            write %s/out
            quitall!
         ]]):format(dir, dir, rhyme.write(dir .. '/model'), dir))
         run(('timeout 100 nvim --headless -u NONE -i NONE -S %s/try.vim'):format(quote(dir)))
         assert.matches('tide: [^\n]*nowhere', files.read(dir .. '/said'))
         assert.equal('one two three four\n', files.read(dir .. '/out'))
      end)
   end)

   it_if(plain and exists(modules .. 'ngx_http_lua_module.so'), 'no nginx with the Lua module')(
      'in nginx answers every request, also malformed ones', function()
      install.with(function(prefix, dir)
         run(('sh spec/support/nginx.sh %s %s %s'):format(quote(prefix), quote(dir),
            quote(rhyme.write(dir .. '/model'))))
      end)
   end)
end)
