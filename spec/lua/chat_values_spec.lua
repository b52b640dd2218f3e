-- chat: exact bounds of a rendering, and data of Lua as values of a template.

local tide = require 'tide'
local each = require 'tide.util.each'

local template = tide.chat.template

local function render(text, variables, limits)
   return (template(text, {}, limits):render({}, variables))
end

describe('a bound of chat.template', function()
   local variables = { x = { 1, 2 }, d = { a = 1 }, s = 'abc' }

   -- Returns the smallest limit with which a template renders.
   local function smallest(text, kind)
      local n = 0
      while true do
         n = n + 1
         local ok, e = pcall(render, text, variables, { [kind] = n })
         if ok then return n end
         assert.matches('limits.' .. kind, tostring(e), 1, true)
      end
   end

   it('of output is the bytes of the longest text, with room for what is put between', function()
      for text, n in each { abc = 3, ["{{ 'a' ~ 'bc' }}"] = 3, ["{{ ('a' ~ 'bc')|length }}"] = 3,
         ['{{ (s + s)|length }}'] = 6, ['{{ (s * 3)|length }}'] = 9, ['{{ (3 * s)|length }}'] = 9,
         ["{{ s.join(['ef', 'g'])|length }}"] = 9, ["{{ ['ef', 'g']|join(', ')|length }}"] = 7,
         ["{{ 'a\\nb\\nc'|indent(2)|length }}"] = 11, ["{{ 'a'|indent(9)|length }}"] = 10,
         ["{{ 'a'|indent('---')|length }}"] = 4, ["{{ 'abcabc'.replace('b', 'xyz')|length }}"] = 12,
         ["{{ 'abcabc'|replace('b', '')|length }}"] = 6,
         ["{{ 'abc'.replace('', '--')|length }}"] = 11, ["{{ 'a'.center(9)|length }}"] = 9,
         ["{{ 'a'.ljust(9)|length }}"] = 9, ["{{ 'a'.zfill(9)|length }}"] = 9,
         ["{{ 'a'|center(9)|length }}"] = 9, ["{{ ('%9d' % 1)|length }}"] = 9,
         ["{{ ('%.9f' % 1)|length }}"] = 9, ["{{ ('%9.8f' % 1)|length }}"] = 17,
         ["{{ ('%s' % 1)|length }}"] = 1, ["{{ '{:9.8f}'.format(1)|length }}"] = 17,
         ["{{ '{:9}'.format(1)|length }}"] = 9, ["{{ '{:.8f}'.format(1)|length }}"] = 8,
         ["{{ '{:d}'.format(1)|length }}"] = 1, ['{{ x|tojson|length }}'] = 6,
         ['{{ d|tojson|length }}'] = 8, ['{% set a %}abc{% endset %}'] = 3,
         ['{% filter length %}abc{{ s }}{% endfilter %}'] = 6, ['{{ s }}\n{{ s }}'] = 7 } do
         assert.equal(n, smallest(text, 'output'), text)
      end
   end)

   it('of steps is nodes, and members of lists that are made', function()
      for text, n in each { a = 1, ['{{ 1 }}'] = 2, ['{{ 1 }}{{ 2 }}'] = 4, ['{{ x + x }}'] = 8,
         ['{{ x * 3 }}'] = 10, ['{{ x|batch(9)|list }}'] = 14, ['{{ x|slice(9)|list }}'] = 14,
         ['{% for a in x %}{{ a }}{% endfor %}'] = 8, ['{% for a in [] %}{% endfor %}'] = 2,
         ['{{ 1 if 0 else 2 }}'] = 4, ['{{ x[0:1:1] }}'] = 6, ['{% if 1 %}a{% endif %}'] = 3 } do
         assert.equal(n, smallest(text, 'steps'), text)
      end
   end)

   it('of depth is calls within calls, not one after the other', function()
      for text, n in each { ['{% macro f() %}{% endmacro %}{{ f() }}{{ f() }}'] = 1,
         ['{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}{{ f(2) }}']
            = 4,
         ['{% for a in [1, [2, [3]], [4]] recursive %}{{ loop(a) if a is iterable }}{% endfor %}']
            = 2 } do
         assert.equal(n, smallest(text, 'depth'), text)
      end
   end)

   it('of nested values is 200 levels below the outermost one', function()
      local function deepest(text, of)
         for n = 191, 260 do
            local ok, e = pcall(render, text, of(n))
            if not ok then
               assert.matches('nested deeper than 200', tostring(e), 1, true)
               return n - 1
            end
         end
      end
      local function nest(wrap)
         return function(n)
            local v = 1
            for _ = 1, n do v = wrap(v) end
            return { v = v }
         end
      end
      local lists = nest(function(v) return { v } end)
      local dicts = nest(function(v) return { a = v } end)
      for _, of in ipairs { lists, dicts } do
         assert.equal(201, deepest('x', of))
         assert.equal(201, deepest('{{ v }}', of))
         assert.equal(200, deepest('{{ v|tojson }}', of))
      end
      local tuples = '{% set ns = namespace(t=1) %}{% for i in range(n) %}'
         .. '{% set ns.t = (ns.t,) %}{% endfor %}'
      for text, most in each { ['{{ ns.t }}'] = 201, ['{{ {ns.t: 1} }}'] = 200,
         ['{{ {1: ns.t} }}'] = 200, ['{{ ns.t|tojson }}'] = 200,
         ['{{ {1: ns.t}|tojson }}'] = 199 } do
         assert.equal(most, deepest(tuples .. text, function(n) return { n = n } end), text)
      end
   end)
end)

describe('data of Lua in a template', function()
   it('are ints below 2^53, else floats; integers of 64 bits keep their digits', function()
      local big = { i = 2^53 - 1, n = -2^53 + 1, f = 2^53, g = -2^53, h = 1.5,
         x = template.float(1), b = 9007199254740993LL, c = 9007199254740993LL,
         u = 18446744073709551615ULL }
      assert.equal('9007199254740991 -9007199254740991 9007199254740992.0 -9007199254740992.0 '
         .. '1.5 1.0', render('{{ i }} {{ n }} {{ f }} {{ g }} {{ h }} {{ x }}', big))
      assert.equal('9007199254740993 [18446744073709551615] {"a": 9007199254740993}',
         render('{{ b }} {{ [u] }} {{ {"a": b}|tojson }}', big))
      assert.equal('True False False True True True False True False', render('{{ b == c }} '
         .. '{{ b == u }} {{ b == i }} {{ b in [c] }} {{ b is number }} {{ b is integer }} '
         .. '{{ b is float }} {{ f is float }} {{ b is string }}', big))
   end)

   it('keep the order of keys that json.decode noted; others are sorted, numbers first', function()
      local t = tide.json.decode('{"b": 1, "a": 2, "k": 3}', { lossless = true })
      t.d, t.c, t.k = 4, 5, nil
      assert.equal("{'b': 1, 'a': 2, 'c': 5, 'd': 4}", render('{{ t }}', { t = t }))
      assert.equal("{2: 'b', 10: 'c', 'B': 'd', 'a': 'e'}",
         render('{{ t }}', { t = { [10] = 'c', a = 'e', [2] = 'b', B = 'd' } }))
      assert.equal("{} [] [{}] {'a': []}", render('{{ a }} {{ b }} {{ c }} {{ d }}', { a = {},
         b = tide.json.array {}, c = { {} }, d = { a = tide.json.array {} } }))
   end)
end)
