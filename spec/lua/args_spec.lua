-- util/args and util/near: declared options, nested names, errors that name the nearest.

local args = require 'tide.util.args'
local files = require 'spec.support.files'
local near = require 'tide.util.near'
local tmp = require 'spec.support.tmp'

local rows = {
   { 'steps', 100, 'how many', min = 1 },
   { 'lr', 1e-3, 'rate', min = 0 },
   { 'val-every', 10, 'evaluation' },
   { 'mesh.dp', 1, 'ranks', min = 1 },
   { 'resume', false, 'go on' },
   { 'tie', true, 'tied' },
   { 'dtype', 'f32', 'type', choices = { 'f32', 'bf16' } },
   { 'data', nil, 'folder' },
}

local function parse(...) return args.new('test', rows):parse { ... } end

local function message(...)
   local ok, e = pcall(parse, ...)
   assert.is_false(ok)
   assert.equal('E_ARG', e.code)
   return tostring(e)
end

describe('util.args', function()
   it('fills in defaults, nested names apart', function()
      local o = parse()
      assert.same({ steps = 100, lr = 1e-3, val_every = 10, mesh = { dp = 1 }, resume = false,
                    tie = true, dtype = 'f32' }, o)
   end)

   it('reads every form of an option', function()
      local o = parse('--steps', '7', '--lr=2e-4', '--val_every', '3', '--mesh.dp', '4', '--resume',
         '--no-tie', '--set', 'dtype=bf16', '--data', 'x y')
      assert.same({ steps = 7, lr = 2e-4, val_every = 3, mesh = { dp = 4 }, resume = true,
                    tie = false, dtype = 'bf16', data = 'x y' }, o)
      assert.is_true(parse('--resume', 'true').resume)
      assert.is_false(parse('--tie', 'false').tie)
      assert.is_false(parse('--tie', 'off', '--steps', '2').tie)
      assert.is_true(parse('--resume', 'Yes').resume)
      assert.is_true(parse('--no-tie=false').tie)
      assert.is_true(parse('--no-tie', 'no').tie)
      assert.is_false(parse('--no-tie=true').tie)
      assert.equal(2, parse('--set', 'mesh.dp=2').mesh.dp)
      assert.equal(9, parse('--', '--steps', '9').steps)
   end)

   it('lets the last of two win', function()
      assert.equal(3, parse('--steps', '2', '--steps', '3').steps)
   end)

   it('collects the values of a list', function()
      local function read(...)
         local parser = args.new('test', { { 'data', nil, 'files', list = true },
            { 'n', 0, 'number' } })
         return parser, parser:parse({ ... }), { parser:parse({ ... }, { data = { 'x', 'y' } }) }
      end
      local _, o, based = read()
      assert.is_nil(o.data)
      assert.same({ 'x', 'y' }, based[1].data)
      _, o = read('--data', 'a')
      assert.equal('a', o.data)
      local parser
      parser, o, based = read('--data', 'a', '--n', '1', '--data=b', '--set', 'data=c')
      assert.same({ 'a', 'b', 'c' }, o.data)
      assert.same({ 'a', 'b', 'c' }, based[1].data)
      assert.same({ data = { 'a', 'b' }, n = 0 }, parser:check { data = { 'a', 'b' } })
      assert.same({ '--data a, b in the checkpoint, now c' },
         parser:changes({ data = { 'a', 'b' } }, { data = 'c' }, 'in the checkpoint'))
      assert.same({}, parser:changes({ data = { 'a', 'b' } }, { data = { 'a', 'b' } }, 'before'))
   end)

   it('guesses no name from a short word that has little of it', function()
      local ok, e = pcall(function()
         return args.new('test', { { 'eos', 1, 'id' }, { 'lr', 1, 'rate' } })
            :parse { '--set', 'foo=1' }
      end)
      assert.is_false(ok)
      assert.is_nil(tostring(e):find 'did you mean')
   end)

   it('names the nearest option', function()
      assert.matches("did you mean '--steps'", message('--stpes', '3'), 1, true)
      assert.matches("did you mean '--val-every'", message('--val-evry', '3'), 1, true)
      assert.matches("did you mean '--help'", message '--hlep', 1, true)
      assert.matches("did you mean '--mesh.dp'", message('--set', 'mesh.pd=3'), 1, true)
   end)

   it('knows the last part of a nested name', function()
      local parser = args.new('test', { { 'tie', true, 'a word as near' },
         { 'mesh.tp', 1, 'ranks' }, { 'fsdp.strategy', 'auto', 'what' },
         { 'mesh.pp', 1, 'stages' }, { 'pp.layers', '', 'of each' } })
      for words, want in pairs { tp = 'mesh.tp', strategy = 'fsdp.strategy', pp = 'mesh.pp' } do
         local ok, e = pcall(parser.parse, parser, { '--' .. words, '2' })
         assert.is_false(ok)
         assert.matches(("did you mean '--%s'?"):format(want), tostring(e), 1, true)
      end
   end)

   it('knows other words for an option', function()
      local more = { { 'lr', 1e-3, 'rate', also = { 'learning', 'learning-rate' } },
         { 'seq', 8, 'tokens', also = { 'seq-len' } } }
      for words, want in pairs { lerning = 'lr', ['learning-rate'] = 'lr', learnign_rate = 'lr',
         seqlen = 'seq', lrr = 'lr' } do
         local parser = args.new('test', more)
         local ok, e = pcall(parser.parse, parser, { '--' .. words, '1' })
         assert.is_false(ok)
         assert.matches(("did you mean '--%s'?"):format(want), tostring(e), 1, true)
      end
      local _, e = pcall(function() return args.new('test', more):parse { '--zzzzzzzz' } end)
      assert.matches('; known: --help, --config, --print-config, '
         .. '--lr, --seq (E_ARG)', tostring(e), 1, true)
   end)

   it('refuses what does not fit the type or range', function()
      assert.matches('an integer >= 1, got "1.5"', message('--steps', '1.5'), 1, true)
      assert.matches('an integer >= 1, got "0"', message('--steps', '0'), 1, true)
      assert.matches('an integer', message('--steps', 'nan'), 1, true)
      assert.matches('finite number', message('--lr', 'inf'), 1, true)
      assert.matches('finite number', message('--lr', 'fast'), 1, true)
      assert.matches('true or false', message('--resume=perhaps'), 1, true)
      assert.matches('one of f32, bf16', message('--dtype', 'f16'), 1, true)
      assert.matches('value is missing', message('--steps'), 1, true)
      assert.matches('unexpected argument', message('steps'), 1, true)
      assert.matches('-n is an option of tide run: give it before the recipe',
         message('-n', '2'), 1, true)
      assert.matches("unknown option '--procs'; --procs is an option of tide run: give it before",
         message('--procs', '2'), 1, true)
      assert.matches('name=value', message('--set', 'steps'), 1, true)
      assert.matches('name=value', message('--set'), 1, true)
   end)

   it('keeps numbers in their range, ends among them', function()
      local function of(row, ...)
         local given = { ... }
         local ok, v = pcall(function() return args.new('test', { row }):parse(given).n end)
         return ok and v or tostring(v):match 'expected (.*) %(E_ARG'
      end
      local both, low = { 'n', 5, '', min = 2, max = 8 }, { 'n', 5, '', min = 2 }
      local high = { 'n', 5, '', max = 8 }
      assert.same({ 2, 8, 'an integer in [2, 8], got "1"', 'an integer in [2, 8], got "9"' },
         { of(both, '--n=2'), of(both, '--n=8'), of(both, '--n=1'), of(both, '--n=9') })
      assert.same({ 2, 9, 'an integer >= 2, got "1"' },
         { of(low, '--n=2'), of(low, '--n=9'), of(low, '--n=1') })
      assert.same({ 8, -3, 'an integer <= 8, got "9"' },
         { of(high, '--n=8'), of(high, '--n=-3'), of(high, '--n=9') })
      local plain = { 'n', 5 }
      assert.same({ 2 ^ 53 - 1, 'an integer that is less than 2^53, got "9007199254740992"',
         'an integer that is less than 2^53, got "-9007199254740992"' },
         { of(plain, '--n=9007199254740991'), of(plain, '--n=9007199254740992'),
            of(plain, '--n=-9007199254740992') })
      local real = { 'n', 5, '', integer = false }
      assert.same({ 1.5, 2 ^ 60, 'a finite number, got "-inf"', 'a finite number, got "nan"' },
         { of(real, '--n', '1.5'), of(real, '--n', '1152921504606846976'),
            of(real, '--n', '-inf'), of(real, '--n', 'nan') })
      local text = { 'n', 'a', '', min = 1 }
      assert.same({ 'b', 'a text, got ""' }, { of(text, '--n=b'), of(text, '--n=') })
      assert.equal('', of({ 'n', 'a' }, '--n='))
      assert.same({ 'option --n is required (E_ARG)' },
         { tostring(select(2, pcall(function()
            return args.new('test', { { 'n', nil, '', required = true } }):parse {}
         end))):match 'option.*' })
      assert.matches("unknown option '--no-n'", tostring(select(2, pcall(function()
         return args.new('test', { plain }):parse { '--no-n' }
      end))), 1, true)
   end)

   it('reads the ids of --ids', function()
      assert.same({ 0, 3, 7 }, args.ids('p', '0, 3 7,', 8))
      assert.same({ 1 }, args.ids('p', '1', 2, 1))
      for text, said in pairs { ['8'] = "whole numbers below 8, got '8'", ['-1'] = "got '-1'",
         ['1.5'] = "got '1.5'", ['1 x'] = "got 'x'", [''] = 'at least one id',
         [' , '] = 'at least one id' } do
         local _, e = pcall(args.ids, 'p', text, 8)
         assert.matches('--ids: expected ', tostring(e), 1, true)
         assert.matches(said, tostring(e), 1, true)
      end
      assert.matches('at least two ids', tostring(select(2, pcall(args.ids, 'p', '1', 8, 2))), 1,
         true)
      assert.same({ 1, 1 }, args.ids('p', '1 1', 8, 2))
   end)

   it('checks tables as it checks words', function()
      local p = args.new('test', rows)
      assert.equal(3, p:check({ mesh = { dp = 3 } }).mesh.dp)
      assert.equal(3, p:check({ ['mesh.dp'] = 3 }).mesh.dp)
      assert.has_error(function() p:check { mesh = { pp = 3 } } end)
      assert.has_error(function() p:check { steps = 2.5 } end)
   end)

   it('takes defaults from an earlier result, with the words on top', function()
      local p = args.new('test', rows)
      local before = p:parse { '--steps', '7', '--mesh.dp', '2', '--no-tie' }
      before.gone = 3                        -- an option that is no longer declared
      local now = p:parse({ '--steps', '9', '--lr', '1' }, before)
      assert.same({ 9, 1, 2, false }, { now.steps, now.lr, now.mesh.dp, now.tie })
      assert.same({ '--steps 7 before, now 9', '--lr 0.001 before, now 1' },
         p:changes(before, now, 'before'))
      assert.same({}, p:changes(now, now, 'before'))
      assert.has_error(function() p:parse({}, { steps = 'many' }) end)
   end)

   it('tells what was given, and asks for other defaults with it', function()
      local p = args.new('test', rows)
      local _, given = p:parse { '--mesh.dp', '2', '--set', 'steps=3', '--no-tie' }
      assert.same({ ['mesh.dp'] = 2, steps = 3, tie = false }, given)
      local asked
      local now, parser, words, more = args.parse('test', rows, { '--steps', '4' }, function(o, g)
         asked = { o.steps, g.steps, g.lr }
         return { steps = 9, lr = 0.5 }, 'more'
      end)
      assert.same({ 4, 4 }, asked)
      assert.same({ 4, 0.5 }, { now.steps, now.lr })
      assert.same({ { steps = 4 }, 'more' }, { words, more })
      assert.equal('test', parser.program)
   end)

   it('keeps fixed options as they were', function()
      local p = args.new('test', { { 'lora.rank', 0, '', fixed = true }, { 'lr', 1, '' },
         { 'from', nil, '', fixed = true } })
      local function refused(before, given)
         local ok, e = pcall(p.refuse_fixed, p, before, p:check(given), given, 'finetune')
         return not ok and tostring(e) or nil
      end
      assert.is_nil(refused({ lora = { rank = 4 }, lr = 1 }, { lr = 2, ['lora.rank'] = 4 }))
      assert.is_nil(refused({ lora = { rank = 4 }, lr = 1, from = 'a' }, { lr = 2 }))
      assert.is_nil(refused({}, { ['lora.rank'] = 0 }))              -- kept by an older version
      assert.equal('finetune: --lora.rank 8: the run was begun with 4, and a resumed run keeps '
         .. 'this value; leave the option out, or start another run (E_ARG)',
         refused({ lora = { rank = 4 } }, { ['lora.rank'] = 8 }))
      assert.matches('--from a: the run was begun with none', refused({}, { from = 'a' }), 1, true)
   end)

   it('tells mistakes in one line', function()
      local ok, e = pcall(parse, '--stpes', '3')
      assert.is_false(ok)
      assert.is_true(e.brief)
      assert.equal("args: unknown option '--stpes'; did you mean '--steps'? (E_ARG)", tostring(e))
   end)

   it('lists every option with its default', function()
      local none, help = parse '--help'
      assert.is_nil(none)
      for _, text in ipairs { '--steps <integer>', '[100]', '--mesh.dp', '--dtype <string>',
                              '(f32, bf16)', '--resume ', '--no-tie ' } do
         assert.matches(text, help, 1, true)
      end
   end)

   it('takes options from a file, words over it, and shows where each is from', function()
      tmp.with(function(dir)
         local path = dir .. '/c.lua'
         files.write(path, 'return { steps = 5, lr = 2, mesh = { dp = 3 }, data = "a b" }')
         local p = args.new('test', rows)
         local o, given, more = p:parse { '--config', path, '--steps', '7' }
         assert.same({ 7, 2, 3, 'a b' }, { o.steps, o.lr, o.mesh.dp, o.data })
         assert.same({ steps = 7, lr = 2, ['mesh.dp'] = 3, data = 'a b' }, given)
         assert.same({ steps = 'command line', lr = path, ['mesh.dp'] = path, data = path },
            more.of)
         assert.same({ path, nil }, { more.config, more.print })
         assert.equal('steps = 7 (command line)\nlr = 2 (' .. path .. ')\n'
            .. 'val_every = 10 (default)\nmesh.dp = 3 (' .. path .. ')\n'
            .. 'resume = true (checkpoint)\ntie = true (default)\ndtype = "f32" (default)\n'
            .. 'data = "a b" (' .. path .. ')\n',
            p:_sources(setmetatable({ resume = true }, { __index = o }), more.of,
               { resume = true }))
         assert.matches('data = not given (default)', p:_sources(p:parse {}, {}, nil), 1, true)
         assert.is_true(select(3, p:parse { '--print-config' }).print)
         assert.is_false(select(3, p:parse { '--print-config=no' }).print)
         for text, words in pairs { ['option --config: expected a file .lua or .json'] = {
               '--config' }, ['option --set: expected name=value, got "x"'] = { '--set', 'x' },
            ['unexpected argument "--" (options begin with --)'] = { '--steps', '2', '--' } } do
            local ok, e = pcall(p.parse, p, words)
            assert.is_false(ok)
            assert.matches(text, tostring(e), 1, true)
         end
         files.write(path, 'return { stps = 5 }')
         local _, e = pcall(p.parse, p, { '--config', path })
         assert.matches(("unknown option 'stps' in %s; did you mean '--steps'?"):format(path),
            tostring(e), 1, true)
      end)
   end)

   it('names what a file of options has in a wrong form', function()
      tmp.with(function(dir)
         local p = args.new('test', { { 'lr', 1, 'rate' }, { 'data', nil, 'texts', list = true } })
         local function said(name, content)
            files.write(dir .. '/' .. name, content)
            return tostring(select(2, pcall(p.parse, p, { '--config', dir .. '/' .. name })))
         end
         for content, want in pairs {
            ['return { data = {} }'] = 'option --data: expected a value or a list of values, got '
               .. 'an empty list',
            ['return { data = { "a", b = "c" } }'] = 'got a table with other keys',
            ['return { help = true }'] = '--help in ' .. dir .. '/c.lua works on the command line',
            ['return { 1, 2 }'] = 'expected options by name, got a list' } do
            assert.matches(want, said('c.lua', content), 1, true)
         end
         assert.matches('begins with a byte order mark', said('c.json', '\239\187\191{}'), 1,
            true)
         assert.matches('an integer beyond 2^53', said('c.json', '{"lr": 9007199254740993}'), 1,
            true)
         local _, e = pcall(p.parse, p, { '--set', 'config=x' })
         assert.matches('--config works on the command line alone', tostring(e), 1, true)
      end)
   end)

   it('splits words that are no options off, wherever they are', function()
      local list = { { 'csv', false, 'flag' }, { 'out', nil, 'file', type = 'string' } }
      for line, want in pairs { ['a b --csv'] = 'a b|--csv',
         ['--csv a --out x b'] = 'a b|--csv --out x', ['--out=x a'] = 'a|--out=x',
         ['--csv yes a'] = 'a|--csv yes',
         ['--csv --out x a'] = 'a|--csv --out x', ['a --csv --csv b'] = 'a b|--csv --csv',
         ['--help a'] = 'a|--help',
         ['--config c.lua a --no-csv b'] = 'a b|--config c.lua --no-csv', [''] = '|',
         ['--out -x a'] = 'a|--out -x', ['--out --csv a'] = 'a|--out --csv' } do
         local words = {}
         for word in line:gmatch '%S+' do words[#words + 1] = word end
         local places, rest = args.split(list, words)
         assert.equal(want, table.concat(places, ' ') .. '|' .. table.concat(rest, ' '))
      end
   end)

   it('shows its help in columns, wrapped before 80', function()
      local p = args.new('prog: what it does', {
         { 'a', 1, ('word '):rep(12) }, { 'tie', true, 'the heads' }, { 'flag', false, 'on' },
         { 'need', nil, 'it', required = true }, { 'free', nil, 'text' },
         { 'a-long-name-that-fills-the-column', 'x', 'y', choices = { 'x', 'z' } } })
      local none, text = p:parse { '-h' }
      assert.is_nil(none)
      local lines = {}
      for line in text:gmatch '[^\n]*' do lines[#lines + 1] = line end
      local want = { 'prog: what it does', 'options:' }
      for i, line in ipairs(want) do assert.is_truthy(text:find(line, 1, true), i) end
      local function at(head, rest) return ('%-32s %s\n'):format(head, rest) end
      assert.is_truthy(text:find(at('  --a <integer>', ('word '):rep(9):sub(1, -2)), 1, true))
      assert.is_truthy(text:find('\n' .. (' '):rep(33) .. 'word word word [1]\n', 1, true))
      for head, rest in pairs { ['  --no-tie'] = 'do not the heads', ['  --flag'] = 'on',
         ['  --need <string>'] = 'it [required]', ['  --free <string>'] = 'text',
         ['  --a-long-name-that-fills-the-column <string>'] = 'y (x, z) [x]',
         ['  --help'] = 'print this text' } do
         assert.is_truthy(text:find(at(head, rest), 1, true), head)
      end
      for _, line in ipairs(lines) do assert.is_true(#line <= 80, line) end
   end)

   it('refuses a doubled declaration', function()
      assert.has_error(function() args.new('t', { { 'a', 1 }, { 'a', 2 } }) end)
   end)
end)

describe('util.near', function()
   it('counts edits and swaps', function()
      assert.equal(0, near.distance('abc', 'abc'))
      assert.equal(1, near.distance('abc', 'acb'))
      assert.equal(3, near.distance('', 'abc'))
      assert.equal(3, near.distance('kitten', 'sitting'))
   end)

   it('offers nothing far away', function()
      assert.is_nil(near.best('zzzz', { 'steps', 'lr' }))
      assert.is_nil(near.best('help', { 'exp', 'relu' }))
      assert.equal('help', near.best('hlep', { 'exp', 'help' }))
   end)

   it('offers the first of a group by its name, and of equal words always the same', function()
      local words = { dora = 'lora.dora', qlora = 'lora.quantise', lorab = 'lora.b' }
      assert.equal('lora.rank', near.best('lora', { 'seed', 'lora.rank', 'lora.dora' }, words))
      for _ = 1, 3 do assert.equal('lora.dora', near.best('lora', { 'seed' }, words)) end
      words.qlora, words.borax, words.aora = nil, 'x', 'lora.a'
      assert.equal('lora.a', near.best('lora', { 'seed' }, words))
   end)
end)
