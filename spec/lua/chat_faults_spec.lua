-- chat: whole messages of what fails in a template, with line and column.

local tide = require 'tide'
local raised = require 'spec.support.raised'

local template = tide.chat.template

local function message(text, variables, limits)
   local e = raised(function() template(text, {}, limits):render({}, variables) end)
   return e.message, e.code
end

-- A template, and what it raises: code, column (of line 1) and message.
local faults = [==[
{{ none.x.y }}
   E_ARG 11: 'None' has no attribute 'x'
{{ x['k'].y }}
   E_ARG 11: 'list object' has no attribute 'k'
{{ x[5].y }}
   E_ARG 9: list object has no element 5
{{ x[q].y }}
   E_ARG 9: list object has no element Undefined
{{ d.k.y }}
   E_ARG 8: 'dict object' has no attribute 'k'
{{ s.k.y }}
   E_ARG 8: 'str object' has no attribute 'k'
{{ q.y }}
   E_ARG 6: 'q' is undefined
{{ q[1:] }}
   E_ARG 6: 'q' is undefined
{{ d[1:] }}
   E_ARG 6: 'dict' object is not subscriptable
{{ none[1:] }}
   E_ARG 9: 'NoneType' object is not subscriptable
{{ x['a':] }}
   E_ARG 6: slice indices must be integers or None
{{ x[::'a'] }}
   E_ARG 6: slice indices must be integers or None
{{ x[::0] }}
   E_ARG 6: slice step cannot be zero
{{ range(q) }}
   E_ARG 9: 'q' is undefined
{{ range('a') }}
   E_ARG 9: 'str' object cannot be interpreted as an integer
{{ range(0, 1, 0) }}
   E_ARG 9: range() arg 3 must not be zero
{{ range(100001) }}
   E_ARG 9: a range of 100001 members is too big; at most 100000
{{ s - 1 }}
   E_ARG 6: unsupported operand type(s) for -: 'str' and 'int'
{{ 1 - s }}
   E_ARG 6: unsupported operand type(s) for -: 'int' and 'str'
{{ s + 1 }}
   E_ARG 6: can only concatenate str (not "int") to str
{{ x + 1 }}
   E_ARG 6: unsupported operand type(s) for +: 'list' and 'int'
{{ q + 1 }}
   E_ARG 6: 'q' is undefined
{{ -s }}
   E_ARG 4: bad operand type for unary -: 'str'
{{ -q }}
   E_ARG 4: 'q' is undefined
{{ 1 // 0 }}
   E_ARG 6: integer division or modulo by zero
{{ 1 / 0 }}
   E_ARG 6: division by zero
{{ 1.5 // 0 }}
   E_ARG 8: float floor division by zero
{{ 0 ** -1 }}
   E_ARG 6: 0.0 cannot be raised to a negative power
{{ 0.0 ** -1 }}
   E_ARG 8: 0.0 cannot be raised to a negative power
{{ (-8) ** 0.5 }}
   E_UNSUPPORTED 9: complex numbers are not supported
{{ 9007199254740991 + 1 }}
   E_UNSUPPORTED 21: integers of 2^53 and more are not supported
{{ 9007199254740992 }}
   E_FORMAT 4: integers of 2^53 and more are not supported
{{ 1 < s }}
   E_ARG 6: '<' not supported between instances of 'int' and 'str'
{{ x < (1, 2) }}
   E_ARG 6: '<' not supported between instances of 'list' and 'tuple'
{{ q < 1 }}
   E_ARG 6: 'q' is undefined
{{ s >= 1 }}
   E_ARG 6: '>=' not supported between instances of 'int' and 'str'
{{ 1 <= none }}
   E_ARG 6: '<=' not supported between instances of 'int' and 'NoneType'
{{ 1 in s }}
   E_ARG 6: 'in <string>' requires string as left operand, not int
{{ 1 in 5 }}
   E_ARG 6: argument of type 'int' is not iterable
{{ x.append(1) }}
   E_ARG 6: access to attribute 'append' of 'list' object is unsafe; templates change no values
{{ d.pop('a') }}
   E_ARG 6: access to attribute 'pop' of 'dict' object is unsafe; templates change no values
{{ s.encode() }}
   E_UNSUPPORTED 6: the method str.encode is not supported
{{ s.nosuch() }}
   E_ARG 12: 'str object' has no attribute 'nosuch'
{{ 5() }}
   E_ARG 5: 'int' object is not callable
{{ q() }}
   E_ARG 5: 'q' is undefined
{{ s.join([1]) }}
   E_ARG 10: sequence item 0: expected str instance, int found
{{ s.join(['a', 2]) }}
   E_ARG 10: sequence item 1: expected str instance, int found
{{ s.find('z', 'a') }}
   E_ARG 10: slice indices must be integers or None
{{ s.index('z') }}
   E_ARG 11: substring not found
{{ s.split('') }}
   E_ARG 11: empty separator
{{ s.split(1) }}
   E_ARG 11: split() argument must be str, not int
{{ s.split(',', 'x') }}
   E_ARG 11: split() takes an integer as 'maxsplit', got str
{{ s.partition('') }}
   E_ARG 15: empty separator
{{ s.center('x') }}
   E_ARG 12: center() takes an integer as 'width', got str
{{ s.zfill() }}
   E_ARG 11: zfill() misses the argument 'width'
{{ s.removeprefix() }}
   E_ARG 18: removeprefix() misses the argument 'prefix'
{{ s.removesuffix(1) }}
   E_ARG 18: removesuffix() argument must be str, not int
{{ s.startswith(1) }}
   E_ARG 16: startswith() argument must be str, not int
{{ s.startswith(('a', 1)) }}
   E_ARG 16: startswith() argument must be str, not int
{{ s.replace('a') }}
   E_ARG 13: replace() misses the argument 'new'
{{ s.replace('a', 'b', 'c') }}
   E_ARG 13: replace() takes an integer as 'count', got str
{{ s.replace('a', 'b', 1, 2) }}
   E_ARG 13: replace() takes at most 3 arguments, got 4
{{ s.strip(a=1) }}
   E_ARG 11: strip() got an unexpected keyword argument 'a'
{{ s.strip('a', chars='b') }}
   E_ARG 11: strip() got multiple values for argument 'chars'
{{ s.isdigit() }}{{ 'é'.isdigit() }}
   E_UNSUPPORTED 33: str.isdigit of text beyond ASCII is not supported
{{ x.index(7) }}
   E_ARG 11: the list does not have the value that index() looks for
{{ x.count() }}
   E_ARG 11: count() misses the argument 'value'
{{ '{0} {}'.format(1) }}
   E_ARG 19: cannot switch from manual field numbering to automatic
{{ '{} {0}'.format(1) }}
   E_ARG 19: cannot switch from automatic field numbering to manual
{{ '{a}'.format(b=1) }}
   E_ARG 16: format has no argument for '{a}'
{{ '{}'.format() }}
   E_ARG 15: format has no argument for '{}'
{{ '{'.format() }}
   E_ARG 14: expected '}' before end of string
{{ '}'.format() }}
   E_ARG 14: single '}' encountered in format string
{{ '{0[}'.format(1) }}
   E_ARG 17: expected '}' in the field '0['
{{ '{:zz}'.format(1) }}
   E_ARG 18: invalid format specifier 'zz'
{{ '{:q}'.format(1) }}
   E_ARG 17: unknown format code 'q' for object of type 'int'
{{ '{:d}'.format(2.5) }}
   E_ARG 17: unknown format code 'd' for object of type 'float'
{{ '{:d}'.format('a') }}
   E_ARG 17: unknown format code 'd' for object of type 'str'
{{ '{:5}'.format(none) }}
   E_ARG 17: unsupported format string passed to NoneType.__format__
{{ '{:,x}'.format(5) }}
   E_UNSUPPORTED 18: a format with ',' and zeros or a base is not supported
{{ '{:010,}'.format(5) }}
   E_UNSUPPORTED 20: a format with ',' and zeros or a base is not supported
{{ '{:.3}'.format(100.0) }}
   E_UNSUPPORTED 18: a whole float with a precision needs f, e or g
{{ '%.100f' % 1.5 }}
   E_UNSUPPORTED 13: a precision of 100 digits is not supported
{{ '%d' % s }}
   E_ARG 9: %d format: a real number is required, not str
{{ '%x' % 2.5 }}
   E_ARG 9: %x format: an integer is required, not float
{{ '%q' % 1 }}
   E_ARG 9: unsupported format character 'q'
{{ '%' % 1 }}
   E_ARG 8: incomplete format
{{ '%s %s' % 1 }}
   E_ARG 12: not enough arguments for format string
{{ '%s' % (1, 2) }}
   E_ARG 9: not all arguments converted during string formatting
{{ 'a' % 1 }}
   E_ARG 8: not all arguments converted during string formatting
{{ '%(a)s' % 1 }}
   E_ARG 12: format requires a mapping
{{ '%(a)s' % d }}{{ '%(k)s' % d }}
   E_ARG 29: the mapping has no key 'k'
{{ '%*d' % ('a', 1) }}
   E_ARG 10: * wants int
{{ '%d' % (1e300 * 1e300) }}
   E_ARG 9: cannot convert float to integer
{{ s|truncate(2) }}
   E_ARG 6: expected length >= 3, got 2
{{ 5|truncate(1, end='', leeway=0) }}
   E_ARG 6: truncate takes a str, got int
{{ 5|indent }}
   E_ARG 6: indent takes a str, got int
{{ q|indent }}
   E_ARG 6: indent takes a str, got 'q' is undefined
{{ 'é'|wordcount }}
   E_UNSUPPORTED 9: wordcount of text beyond ASCII is not supported
{{ q|int }}
   E_ARG 6: 'q' is undefined
{{ q|abs }}
   E_ARG 6: 'q' is undefined
{{ s|abs }}
   E_ARG 6: bad operand type for abs(): str
{{ s|round }}
   E_ARG 6: type str doesn't define __round__ method
{{ 5.5|round(1, 'x') }}
   E_ARG 8: method must be common, ceil or floor
{{ 5|length }}
   E_ARG 6: object of type 'int' has no len()
{{ 5|attr(1) }}
   E_ARG 6: attr takes a name
{{ s|attr('k') + 1 }}
   E_ARG 16: 'str object' has no attribute 'k'
{{ x|dictsort }}
   E_ARG 6: dictsort takes a dict, got list
{{ d|dictsort(by='x') }}
   E_ARG 6: You can only sort by either "key" or "value"
{{ x|items }}
   E_ARG 6: Can only get item pairs from a mapping.
{{ []|first + 1 }}
   E_ARG 13: No first item, sequence was empty.
{{ []|last + 1 }}
   E_ARG 12: No last item, sequence was empty.
{{ []|min + 1 }}
   E_ARG 11: No aggregated item, sequence was empty.
{{ x|map }}
   E_ARG 6: map requires a filter argument
{{ x|map('nosuch') }}
   E_ARG 6: there is no filter 'nosuch'
{{ x|map(1) }}
   E_ARG 6: there is no filter '1'
{{ x|map(attribute='a', k=1) }}
   E_ARG 6: map() got an unexpected keyword argument 'k'
{{ x|select('nosuch')|list }}
   E_ARG 6: there is no test 'nosuch'
{{ x|selectattr }}
   E_ARG 6: Missing parameter for attribute name
{{ x|select('odd') }}
   E_UNSUPPORTED 1: a generator has no text here; apply "list" to a generator before it is printed
{{ x|select('odd')|last }}
   E_ARG 20: 'generator' object is not reversible
{{ x|batch('a') }}
   E_ARG 6: batch() takes an integer as 'linecount', got str
{{ x|slice }}
   E_ARG 6: slice() misses the argument 'slices'
{{ {[1]: 2} }}
   E_ARG 10: unhashable type: 'list'
{{ {d: 2} }}
   E_ARG 8: unhashable type: 'dict'
{{ {(1, 2): 3}|tojson }}
   E_ARG 16: keys must be str, int, float, bool or None, not tuple
{{ q|tojson }}
   E_ARG 6: Object of type Undefined is not JSON serializable
{{ range(2)|tojson }}
   E_ARG 13: Object of type range is not JSON serializable
{{ 5 is sameas }}
   E_ARG 9: the test 'sameas' takes 1 argument(s), got 0
{{ 5 is odd(1) }}
   E_ARG 9: the test 'odd' takes 0 argument(s), got 1
{{ 5 is eq }}
   E_ARG 9: the test 'eq' takes 1 argument(s), got 0
{{ raise_exception('a') }}
   E_ARG 19: the template refuses its input: a
{{ raise_exception() }}
   E_ARG 19: raise_exception() misses the argument 'message'
{{ namespace(_a=1) }}
   E_ARG 13: a namespace has no fields that begin with '_', got '_a'
{{ dict([[1]]) }}
   E_ARG 8: dict() takes pairs of a key and a value
{{ cycler() }}
   E_ARG 10: at least one item has to be provided
{{ s(*5) }}
   E_ARG 7: 'int' object is not iterable
{{ dict(**5) }}
   E_ARG 11: argument after ** must be a mapping, not int
{{ dict(a=1, **{'a': 2}) }}
   E_ARG 22: got multiple values for keyword argument 'a'
{% set q.a = 1 %}
   E_ARG 8: cannot assign attribute on non-namespace object
{% set ns = namespace() %}{% set ns._a = 1 %}
   E_ARG 34: a namespace has no fields that begin with '_', got '_a'
{% set a, b = 1, 2, 3 %}
   E_ARG 4: too many values to unpack (expected 2)
{% set a, b = [1] %}
   E_ARG 4: not enough values to unpack (expected 2, got 1)
{% for a in 5 %}{% endfor %}
   E_ARG 4: 'int' object is not iterable
{% for a in x %}{{ loop() }}{% endfor %}
   E_ARG 24: the loop must have the 'recursive' marker to be called
{% for a in x %}{{ loop.cycle() }}{% endfor %}
   E_ARG 30: no items for cycling given
{% for a in x %}{{ loop.previtem + 1 }}{% endfor %}
   E_ARG 34: there is no previous item
{% for a in x %}{{ loop.nextitem + 1 }}{% endfor %}
   E_ARG 34: there is no next item
{% macro f(a) %}{{ a + 1 }}{% endmacro %}{{ f() }}
   E_ARG 22: parameter 'a' was not provided
{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}
   E_ARG 35: macro 'f' takes not more than 1 argument(s)
{% macro f(a) %}{% endmacro %}{{ f(b=1) }}
   E_ARG 35: macro 'f' takes no keyword argument 'b'
{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}
   E_ARG 25: No caller defined
{% macro f() %}{% endmacro %}{% call f() %}{% endcall %}
   E_ARG 39: macro 'f' takes no keyword argument 'caller'
{% break %}
   E_FORMAT 4: 'break' is outside of a loop
{% nosuch %}
   E_FORMAT 4: unknown tag 'nosuch'
{% include 'a' %}
   E_UNSUPPORTED 4: the tag 'include' is not supported in chat templates
{% 'a' %}
   E_FORMAT 4: unknown tag a string
{% %}
   E_FORMAT 4: unknown tag '%}'
{% set true = 1 %}
   E_FORMAT 8: 'true' cannot be assigned to
{% set 'a' = 1 %}
   E_FORMAT 8: expected a name, got a string
{% set %}
   E_FORMAT 8: expected an expression, got '%}'
{% set x y %}
   E_FORMAT 10: expected '%}', got 'y'
{% if 1 2 %}
   E_FORMAT 9: expected '%}', got '2'
{% if 1 %}
   E_FORMAT 4: 'if' has no end
{% for a x %}
   E_FORMAT 10: expected 'in', got 'x'
{% for a in %}
   E_FORMAT 13: expected an expression, got '%}'
{% macro f(a=1, b) %}{% endmacro %}
   E_FORMAT 18: a parameter without a default follows one with a default
{% macro f a %}{% endmacro %}
   E_FORMAT 12: expected '(', got 'a'
{% call 5 %}{% endcall %}
   E_FORMAT 4: a call must follow 'call'
{% raw %}
   E_FORMAT 1: the raw block has no endraw
{# a
   E_FORMAT 1: the comment has no end
{{ 'a
   E_FORMAT 4: the string has no end
{{ )
   E_FORMAT 4: unexpected ')'
{{ (1
   E_FORMAT 1: the tag has no '}}'
{{ (1] }}
   E_FORMAT 6: unexpected ']'
{{ a b }}
   E_FORMAT 6: expected '}}', got 'b'
{{ a 'b' }}
   E_FORMAT 6: expected '}}', got a string
{{ a. }}
   E_FORMAT 7: expected a name or number after '.'
{{ a[1, 2] }}
   E_UNSUPPORTED 7: several subscripts are not supported
{{ a[1:2:3:4] }}
   E_FORMAT 12: a slice has at most three parts
{{ f(a=1, 2) }}
   E_FORMAT 5: arguments are in an order that no call has
{{ f(**a, *b) }}
   E_FORMAT 5: arguments are in an order that no call has
{{ }}
   E_FORMAT 4: expected an expression, got '}}'
{{ 1 + }}
   E_FORMAT 8: expected an expression, got '}}'
{{ {1 2} }}
   E_FORMAT 7: expected ':', got '2'
{{ @ }}
   E_FORMAT 4: unexpected character '@'
{{ 1 ! 2 }}
   E_FORMAT 6: unexpected character '!'
{{ 1 is odd is even }}
   E_FORMAT 13: tests cannot be chained with 'is'
{{ 1|nosuch }}
   E_UNSUPPORTED 6: there is no filter 'nosuch'
{{ 1|uper }}
   E_UNSUPPORTED 6: there is no filter 'uper'; did you mean 'upper'?
{{ 1 is nosuch }}
   E_UNSUPPORTED 9: there is no test 'nosuch'
{{ 1 is od }}
   E_UNSUPPORTED 9: there is no test 'od'; did you mean 'odd'?
{% if 1 %}{% endif %}{{ 1|uper }}
   E_UNSUPPORTED 27: there is no filter 'uper'; did you mean 'upper'?
{% if 1 %}{{ 1|uper }}{% endif %}
   E_UNSUPPORTED 16: there is no filter 'uper'
{{ '\x1' }}
   E_FORMAT 4: \x needs 2 hexadecimal digits of a character
{{ '\ud800' }}
   E_FORMAT 4: \u needs 4 hexadecimal digits of a character
{{ '\udfff' }}
   E_FORMAT 4: \u needs 4 hexadecimal digits of a character
{{ '\U00110000' }}
   E_FORMAT 4: \U needs 8 hexadecimal digits of a character
{{ '\N{DOT}' }}
   E_FORMAT 4: names of characters (\N{..}) are not supported
{{ '\é' }}
   E_FORMAT 4: a backslash precedes a letter beyond ASCII
{% filter nosuch %}{% endfilter %}
   E_UNSUPPORTED 11: there is no filter 'nosuch'
{{ loop.x.y }}
   E_ARG 9: 'loop' is undefined
{{ self.a.b }}
   E_ARG 11: 'jinja2.runtime.TemplateReference object' has no attribute 'a'
{{ '
   E_FORMAT 4: the string has no end
{% filter upper %}{% endfilter %}{% if 1 %}
   E_FORMAT 37: 'if' has no end
]==]

describe('a message of chat.template', function()
   it('says the place and what is wrong, word for word', function()
      local variables = { x = { 1, 2 }, d = { a = 1 }, s = 'abc' }
      for text, code, column, words in faults:gmatch '([^\n]+)\n   (%S+) (%d+): ([^\n]+)\n' do
         local said, by = message(text, variables)
         assert.same({ code, ('line 1, column %d: %s'):format(column, words) }, { by, said }, text)
      end
   end)

   it('counts lines and columns from 1', function()
      for text, place in pairs { ['a\n\n{{ 1 / 0 }}'] = 'line 3, column 6',
         ['{{ 1 }}\r\n{{ [1,\n 2, 1 / 0] }}'] = 'line 3, column 7',
         ['{{ (\n'] = 'line 1, column 1', ['\n{{\n@ }}'] = 'line 3, column 1' } do
         assert.matches(place .. ': ', (message(text)), 1, true, text)
      end
      local deep = ('{% if 1 %}'):rep(150)
      assert.equal('line 1, column 1501: blocks are nested too deeply', (message(deep)))
      -- text that begins with the end of a line is on that line
      assert.matches('line 1, column 8: ', (message('{{ 1 }}\n\ny', {}, { output = 2 })), 1, true)
   end)

   it('has no place where no node is at fault', function()
      assert.equal("argument 'messages[1]': expected a table { role =, content = }, got \"hello\"",
         raised(function() return template 'x':render { 'hello' } end).message)
      assert.equal('a function is no data of a template', (message('x', { f = print })))
      assert.equal('variables have names, got the index 1', (message('x', { 5 })))
   end)
end)
