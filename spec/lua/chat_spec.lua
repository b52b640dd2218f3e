-- chat: templates against jinja2 (golden/jinja.py), their errors with line and column, bounds,
-- folders of models.

local tide = require 'tide'
local raised = require 'spec.support.raised'
local read = require('spec.support.files').read
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

local template = tide.chat.template

local function render(text, messages, opts) return (template(text):render(messages or {}, opts)) end

describe('chat.template', function()
   local rows = tide.json.decode(read 'spec/golden/jinja.json', { lossless = true })
   local values = table.remove(rows, 1)

   -- Names of jinja2's errors for what has no counterpart here: all are errors.
   it('renders what jinja2 renders, byte for byte, and refuses what it refuses', function()
      local same, refused = 0, 0
      for _, row in ipairs(rows) do
         local variables = row.variables == tide.json.null and values or row.variables
         local ok, text, ranges = pcall(function()
            return template(row.template):render(row.messages, variables)
         end)
         if row.error then
            assert.is_false(ok, row.template)
            assert.is_true(tide.is_error(text), row.template .. ': ' .. tostring(text))
            assert.matches('line %d+, column %d+: ', text.message)
            refused = refused + 1
         elseif ok then
            assert.equal(row.text, text, row.template)
            assert.same({ unpack(row.ranges) }, ranges, row.template)
            same = same + 1
         else
            assert.equal('E_UNSUPPORTED', text.code, row.template .. ': ' .. tostring(text))
            assert.is_truthy(row.template:find "map%('upper'%) }}", row.template .. tostring(text))
         end
      end
      assert.is_true(same > 90 and refused > 15, same .. ' ' .. refused)
   end)

   it('takes plain tables: names sorted, an empty table of tools a list', function()
      local t = template "{{ messages[0] }}{{ tools is mapping }}{{ x }}{{ y|tojson }}"
      local text = t:render({ { role = 'user', content = 'c' } }, { tools = {}, x = { 1, 2.5 },
         y = { b = true, a = tide.json.null } })
      assert.equal("{'content': 'c', 'role': 'user'}False[1, 2.5]{\"a\": null, \"b\": true}", text)
   end)

   it('reads x.1.0 as items of items, and slices what range gives', function()
      assert.equal('b', (template '{{ x.1.0 }}':render({}, { x = { { 'a' }, { 'b', 'c' } } })))
      assert.equal('range(5, 14, 3)', (template '{{ range(2, 20, 3)[1:4] }}':render {}))
      assert.equal('[5, 8, 11] [17, 11, 5]', (template(
         '{{ range(2, 20, 3)[1:4] | list }} {{ range(2, 20, 3)[::-2] | list }}'):render {}))
   end)

   it('knows in a loop whether a value has changed', function()
      assert.equal('aba', (template(
         "{% for x in 'aabba' %}{% if loop.changed(x) %}{{ x }}{% endif %}{% endfor %}"):render {}))
   end)

   it('has methods, filters and tests for the cases that Python has', function()
      for source, want in pairs {
         ["{{ 'a\\r\\nb\\u0085c\\n'.splitlines() }}"] = "['a', 'b', 'c']",
         ["{{ 'abc'.find('', 3) }} {{ 'abc'.find('', 4) }}"] = '3 -1',
         ["{{ 'abc'.startswith('', 3) }} {{ 'abc'.startswith('', 4) }}"] = 'True False',
         ["{{ {'a b': 'c&'} | urlencode }} {{ [['k/', 1]] | urlencode }}"] = 'a+b=c%26 k%2F=1',
         ["{{ 'a/b c' | urlencode }}"] = 'a/b%20c',
         ["{{ 'ff' | int(0, 16) }} {{ '12' | int(0, true) }} {{ '12' | int(0, 37) }}"]
            = '255 12 12',
         ["{{ 'x' | int(7, true) }} {{ '0x1f' | int(0, 0) }} {{ '12' | int(0, -2) }}"] = '7 31 12',
         ['{{ 1 is callable }} {{ range is callable }} {{ u is callable }}'] = 'False True True',
         ['{% macro m() %}{% endmacro %}{{ m is callable }} {{ joiner() is callable }}']
            = 'True True',
         ["{{ 'né'.replace('', '-') }} {{ 'né'.replace('', '-', 2) }}"] = '-n-é- -n-é',
         ["{{ 'né'.replace('', '-', 0) }}"] = 'né',
         ["{{ 'ΣΟΣΟΣ Σ ΣΑΣ' | lower }}"] = 'σοσος σ σας',      -- a sigma that ends a word
      } do
         assert.equal(want, (template(source):render {}), source)
      end
   end)

   it('formats numbers as Python does', function()
      assert.equal('ff 0xff 0b101 +0x0f', (template(
         "{{ '{:x} {:#x} {:#b} {:+#05x}'.format(255, 255, 5, 15) }}"):render {}))
   end)

   it('sees its own variables, and those of a rendering first', function()
      local t = template('{{ bos_token }}{{ eos_token }}',
         { bos_token = '<s>', eos_token = '</s>' })
      assert.equal('<s></s>', (t:render {}))
      assert.equal('<s>!', (t:render({}, { eos_token = '!' })))
   end)

   it('trims white space beyond ASCII on both sides', function()
      local wide = '\227\128\128'                  -- U+3000
      local text = template '[{{ x | trim }}]':render({}, { x = wide .. ' é \194\160' .. wide })
      assert.equal('[é]', text)
   end)

   it('writes characters that are not printable as Python does', function()
      assert.equal([==[['\x01\x1f ~\x7fé']]==], render('{{ [x] }}', {},
         { x = '\1\31 ~\127é' }))
   end)

   it('gives the ranges of generation blocks in bytes', function()
      local t = template('{% for m in messages %}é{% generation %}{{ m.content }}!'
         .. '{% endgeneration %}{% endfor %}')
      assert.is_true(t:marks_generation())
      local text, ranges = t:render { { role = 'a', content = 'ü' },
         { role = 'a', content = 'xy' } }
      assert.same({ 'ü!', 'xy!' }, { text:sub(ranges[1][1] + 1, ranges[1][2]),
         text:sub(ranges[2][1] + 1, ranges[2][2]) })
      assert.is_false(template('{{ generation }}'):marks_generation())
   end)

   it('leaves the values of the caller alone', function()
      local messages = { { role = 'user', content = 'x', reasoning = 'r' } }
      assert.equal('rr', render('{{ messages[0].thinking }}{{ messages[0].reasoning_content }}',
         messages))
      assert.same({ { role = 'user', content = 'x', reasoning = 'r' } }, messages)
   end)

   it('formats the given time', function()
      assert.equal(os.date('%d %b %Y', 86400 * 400),
         render("{{ strftime_now('%d %b %Y') }}", {}, { now = 86400 * 400 }))
      assert.equal('*t!', render("{{ strftime_now('*t!') }}"))
   end)
end)

describe('errors of chat.template', function()
   local function message(text, messages, opts)
      local e = raised(render, text, messages, opts)
      return e.message, e.code
   end

   it('have line and column', function()
      local text, code = message 'a\n{% if x %}\n  {{ y | nope }}'
      assert.equal("line 2, column 4: 'if' has no end", text)
      assert.equal('E_FORMAT', code)
      text, code = message 'ab\n {{ 1 | uper }}'
      assert.equal("line 2, column 9: there is no filter 'uper'; did you mean 'upper'?", text)
      assert.equal('E_UNSUPPORTED', code)
      text, code = message '{{ a }}\n{{ a.b.c }}'
      assert.equal("line 2, column 6: 'a' is undefined", text)
      assert.equal('E_ARG', code)
      assert.equal("line 1, column 4: the tag 'include' is not supported in chat templates",
         (message "{% include '/etc/passwd' %}"))
      assert.equal('line 1, column 19: the template refuses its input: no system',
         (message "{{ raise_exception('no system') }}"))
   end)

   it('reach a caller that gives wrong arguments', function()
      assert.equal('E_ARG', raised(template, 5).code)
      assert.equal('E_ARG', raised(render, 'x', { 'hello' }).code)
      assert.equal('E_ARG', raised(render, 'x', {}, { f = print }).code)
      assert.equal('E_ARG', raised(template, 'x', {}, { stepz = 1 }).code)
   end)
end)

describe('bounds of chat.template', function()
   local function bounded(text, limits)
      return raised(function() return template(text, {}, limits):render {} end).message
   end

   it('hold loops, output, calls and single texts', function()
      assert.matches('more than 500 steps', bounded(
         '{% for i in range(1000) %}{{ i }}{% endfor %}', { steps = 500 }), 1, true)
      assert.matches('more than 100 bytes', bounded(
         '{% for i in range(1000) %}xxxx{% endfor %}', { output = 100 }), 1, true)
      for _, text in ipairs { "{{ 'ab' * 1000000000000 }}",
         "{% set ns = namespace(s='x' * 1000) %}{% for i in range(60) %}"
            .. '{% set ns.s = ns.s ~ ns.s %}{% endfor %}',
         "{{ '%999999999999d' % 1 }}", "{{ '{:999999999999}'.format(1) }}",
         "{{ 'a'.center(999999999999) }}", "{{ 'a\\nb' | indent(999999999999) }}",
         "{{ 'aaaa'.replace('', 'b' * 60000000) }}",
         "{{ ['a' * 60000000, 'b' * 60000000] | join }}" }
      do
         assert.matches('limits.output', bounded(text), 1, true, text)
      end
      for _, text in ipairs { '{{ [0] * 1000000000000 }}',
         '{% set ns = namespace(l=[0, 1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}'
            .. '{% endfor %}', '{{ [1] | batch(99999999999, 0) | list }}' }
      do
         assert.matches('limits.steps', bounded(text), 1, true, text)
      end
      assert.matches('limits.depth', bounded(
         '{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}'), 1, true)
      assert.matches('limits.depth', bounded(
         '{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}'), 1, true)
      assert.matches('too big', bounded '{{ range(1000000000)|length }}', 1, true)
   end)

   it('hold values that are nested', function()
      local function nested(n)
         local x = { 1 }
         for _ = 2, n do x = { x } end
         return function() return render('{{ x }}', {}, { x = x }) end
      end
      assert.equal(('['):rep(201) .. '1' .. (']'):rep(201), nested(201)())
      assert.matches('deeper than 200', raised(nested(202)).message, 1, true)
   end)

   it('are at 150 levels of blocks and expressions', function()
      for _, row in ipairs { { '{{ ', '(', '1', ')', ' }}', 148 },
         { '{{ ', '-', '1', '', ' }}', 148 }, { '', '{% if 1 %}', '1', '{% endif %}', '', 149 } } do
         local head, open, inner, close, tail, most = unpack(row)
         local function of(n)
            return head .. open:rep(n) .. inner .. close:rep(n) .. tail
         end
         assert.matches('^%-?1$', (template(of(most)):render {}))
         assert.matches('nested too deeply', raised(template, of(most + 1)).message, 1, true)
      end
   end)

   it('hold what is nested', function()
      assert.matches('nested too deeply',
         bounded('{{ ' .. ('['):rep(500) .. (']'):rep(500) .. ' }}'), 1, true)
      assert.matches('nested too deeply', bounded('{{ ' .. ('-'):rep(500) .. '1 }}'), 1, true)
      assert.matches('nested too deeply', bounded(('{% if 1 %}'):rep(5000)), 1, true)
      local sum = '{{ 1' .. (' + 1'):rep(50000) .. ' }}'
      assert.matches('nested too deeply', bounded(sum), 1, true)
      assert.matches('nested too deeply',
         bounded('{% macro f() %}' .. sum .. '{% endmacro %}{{ f() }}'), 1, true)
   end)
end)

describe('chat.load', function()
   local config = [[{ "bos_token": { "content": "<s>" }, "eos_token": "</s>",
      "chat_template": [ { "name": "default", "template": "{{ bos_token }}d" },
      { "name": "tool_use", "template": "t{{ eos_token }}" } ] }]]

   it('reads the templates that folders of models have', function()
      tmp.with(function(dir)
         write(dir .. '/tokenizer_config.json', config)
         assert.equal('<s>d', (tide.chat.load(dir):render {}))
         assert.equal('t</s>', (tide.chat.load(dir, 'tool_use'):render {}))
         assert.matches("did you mean 'tool_use'",
            raised(tide.chat.load, dir, 'tool-use').message, 1, true)
         write(dir .. '/chat_template.json', [[{ "chat_template": "json{{ eos_token }}" }]])
         assert.equal('json</s>', (tide.chat.load(dir):render {}))
         write(dir .. '/chat_template.jinja', 'file{{ bos_token }}\n')
         assert.equal('file<s>', (tide.chat.load(dir):render {}))
      end)
   end)

   it('is not needed where a path is a file, or lies in a folder with one', function()
      tmp.with(function(dir)
         write(dir .. '/tokenizer_config.json', config)
         write(dir .. '/own.jinja', 'own{{ bos_token }}')
         require('tide.util.fs').mkdirs('spec', dir .. '/step-1')
         assert.equal('own', (tide.chat.find(dir .. '/own.jinja'):render {}))
         assert.equal('own<s>', (tide.chat.find(dir .. '/own.jinja', nil, dir):render {}))
         assert.equal('<s>d', (tide.chat.find(dir):render {}))
         assert.equal('t</s>', (tide.chat.find(dir .. '/step-1', 'tool_use'):render {}))
         write(dir .. '/step-1/LATEST', 'step-00000001\n')             -- a run of its own
         assert.is_nil(tide.chat.find(dir .. '/step-1'))
      end)
   end)

   it('takes the one that is there, the default of several, or the one that is named', function()
      tmp.with(function(dir)
         local more = dir .. '/additional_chat_templates'
         require('tide.util.fs').mkdirs('spec', more)
         write(more .. '/tool_use.jinja', 'tool')
         write(more .. '/notes.txt', 'notes')
         assert.equal('tool', (tide.chat.load(dir):render {}))
         assert.equal('tool', (tide.chat.load(dir, 'tool_use'):render {}))
         assert.equal(dir .. " has no chat template 'x' (it has tool_use); known: tool_use",
            raised(tide.chat.load, dir, 'x').message)
         write(more .. '/rag.jinja', 'rag')
         assert.matches("has no chat template 'default' (it has rag, tool_use)",
            raised(tide.chat.load, dir).message, 1, true)
         assert.equal('rag', (tide.chat.load(dir, 'rag'):render {}))
         assert.equal('cannot read ' .. dir .. '/no: there is no such file or folder',
            raised(tide.chat.find, dir .. '/no').message)
         assert.equal('cannot read {{ x }}: there is no such file or folder; give a file that '
            .. 'holds the template', raised(tide.chat.find, '{{ x }}').message)
         assert.equal(dir .. '/no is not a folder', raised(tide.chat.load, dir .. '/no').message)
         write(dir .. '/t.jinja', 'x')
         assert.equal(dir .. '/t.jinja is not a folder; tide.chat.find reads a template from a '
            .. 'file', raised(tide.chat.load, dir .. '/t.jinja').message)
         assert.matches('neither chat_template.jinja, nor chat_template.json, nor the field',
            raised(tide.chat.load, '/').message, 1, true)
      end)
   end)

   it('refuses folders without one', function()
      tmp.with(function(dir)
         assert.equal('E_FORMAT', raised(tide.chat.load, dir).code)
         write(dir .. '/tokenizer_config.json', '{ "chat_template": null }')
         assert.equal('E_FORMAT', raised(tide.chat.load, dir).code)
         write(dir .. '/tokenizer_config.json', '{ "chat_template": 5 }')
         assert.equal('E_FORMAT', raised(tide.chat.load, dir).code)
         for _, row in ipairs { '5', '{ "name": 5, "template": "x" }', '{ "template": "x" }',
            '{ "name": "a", "template": 5 }' } do
            write(dir .. '/tokenizer_config.json', ('{ "chat_template": [ { "name": "default", '
               .. '"template": "d" }, %s ] }'):format(row))
            assert.matches('chat_template[2] is not { name, template }',
               raised(tide.chat.load, dir).message, 1, true)
         end
         assert.equal('E_IO', raised(tide.chat.load, dir .. '/nothing').code)
      end)
   end)
end)
