# Renders templates with jinja2 as transformers does, for spec/lua/chat_spec.lua.
#
#    python3 spec/golden/jinja.py             writes spec/golden/jinja.json
#
# Further templates stand one a line in jinja_expressions.txt and jinja_bodies.txt.
#
# Each row: a template, messages, variables, and the text with the character ranges of its
# `generation` blocks, or that jinja2 raises. Made with jinja2 3.1.6 and transformers 5.

import json
import os

from transformers.utils.chat_template_utils import _alias_reasoning_fields
from transformers.utils.chat_template_utils import _compile_jinja_template
from transformers.utils.chat_template_utils import _render_with_assistant_indices

TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": 'The "weather" <now> & here, é',
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"}, "days": {"type": ["integer", "null"], "minimum": 1.0}}}}}]

CHAT = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Wie heißt 中文?\n"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "c1", "function": {"name": "weather", "arguments": {"city": "Kyiv", "days": 2}}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "22"},
    {"role": "assistant", "content": "22 °C.", "reasoning": "It is warm."},
]

VALUES = {
    "s": "Hello World", "t": "  a,b ,c\n", "u": "héllo wörld ÄÖ 中文", "n": 5, "z": 0, "neg": -3,
    "f": 2.5, "g": 1e20, "l": [3, 1, 2], "ls": ["b", "A", "c", "a"], "nn": None, "yes": True,
    "d": {"b": 1, "a": {"x": [1, 2]}, "C": None, "k k": "v'q"}, "e": "", "el": [],
    "ld": [{"n": "x", "v": 2, "ok": True}, {"n": "Y", "v": 1, "ok": False}, {"n": "z", "v": 3}],
    "m": "line1\nline2\n\n  line4\t'q' \"d\" \\ \u200b",
}

EXPRESSIONS = """
s.upper() ~ s.lower() ~ s.title() ~ s.swapcase()
u.upper()
u[::-1] ~ u[1:3] ~ u[-2] ~ u|length
u|title
t.split(',')
s.split('l', 1)
s.rsplit('l', 1)
t.split()
m.splitlines()
m|indent(2, true)
m|indent('> ', blank=true)
m
[m]
d
d.a.x[0] ~ d['k k'] ~ d.C ~ d.missing
d.b.c.d
missing.x
[1, 2.0, 1e16, 1e-7, 0.1 + 0.2, -0.0, none, true, 'q', "it's", (1,), (), {}]
7 // 2 ~ ' ' ~ -7 // 2 ~ ' ' ~ 7 % -3 ~ ' ' ~ 7 / 2 ~ ' ' ~ 2 ** 10 ~ ' ' ~ 2 ** -1
1 / 0
'a' + 1
1 < 2 < 3 and not 3 < 2
1 == 1.0 and true == 1 and 'a' != 1
'ell' in s and 'x' not in ls and 'b' in d
1 in s
'yes' if n > 3 else 'no'
'yes' if n > 9
(yes and s) ~ (z or 'zero') ~ (not el)
l|sort ~ l|sort(reverse=true) ~ ls|sort ~ ls|sort(case_sensitive=true)
ld|map(attribute='n')|join('-')
ld|selectattr('v', 'gt', 1)|map(attribute='n')|list
ld|rejectattr('ok', 'defined')|list
ld|groupby('v')
ld|sort(attribute='v')|map(attribute='v')|list
ls|map('upper')|list
ls|map('upper')
l|select('odd')|list
d|dictsort
d|items|list
d.items()|list
d|tojson
ld|tojson(indent=2)
d|tojson(separators=(',', ':'), sort_keys=true)
u|tojson(ensure_ascii=true)
[1.0, 1e20, none, true]|tojson
'<a>&"'|e
'<' + ('x'|safe)
s|replace('l', 'L')|replace('o', '0', 1)
s|truncate(8, true, '..') ~ s|center(21) ~ '|'
t|trim ~ '|' ~ t.strip(' ,\\nac') ~ '|'
'3.7'|int + '0x1f'|int(base=16) + 'x'|int(7) ~ ' ' ~ '1e3'|float
5.25|round(1) ~ ' ' ~ 2.675|round(2) ~ ' ' ~ 2.5|round ~ ' ' ~ 42.4|round(0, 'ceil')
'%s|%r|%5d|%-5s|%05.1f|%x' % (s, s, n, 'ab', f, 255)
'{} {x!r:>6} {y:,} {z:.2f}'.format(n, x='q', y=1234567, z=f)
'{0} {}'.format(1)
"%s and %(a)s"|format(1)
range(4)|list ~ range(5, 1, -2)|list ~ range(3)
range(10)|batch(4, '-')|list
range(10)|slice(3)|list
ls|first ~ ls|last ~ el|first
l|sum ~ l|min ~ l|max ~ ld|sum(attribute='v')
(l + [9])|unique|list ~ l * 2 ~ '-' * 5
s is string and n is number and d is mapping and l is sequence and nn is none and q is undefined
n is odd and n is divisibleby 5 and n is in l + [5] and f is float and yes is boolean
dict(a=1, **{'b': 2})
namespace(a=1).a
cycler('a', 'b').next() ~ joiner()() ~ 'x'
strftime_now('%%')
self.header ~ (self.header is defined) ~ (self is defined)
self.header.text
self.header()
raise_exception('no')
l.append(4)
d.pop('b')
''.__class__
[].__class__.__mro__
range(1000000000)
s|nosuch
s is nosuch
"\\n\\t\\x41\\u00e9\\q" ~ '\\''
'a' 'b'
s.startswith('He') ~ s.endswith(('d', 'x')) ~ s.find('o') ~ s.rfind('o') ~ s.count('l')
s.partition('o') ~ s.rpartition('x')
'42'.zfill(5) ~ '-42'.zfill(5) ~ 'ab'.center(5, '*') ~ 'a'.ljust(3) ~ 'a'.rjust(3) ~ '|'
l[0] ~ l[-1] ~ l[9] ~ l['a']
l[1:] ~ l[::-1] ~ l[:2]
-n ~ +n ~ -(2) ** 2 ~ -f
d.get('b') ~ d.get('q') ~ d.get('q', 4)
loop
[('<a'|e)|reverse, ('a-b'|safe).split('-'), 'a' ~ ('&'|e)]
'  a b  c '.rsplit(none, 1) + '  a b  c '.split(none, 1) + 'abc'.split('b')
'%.1f %.0f %.2f' % (5.25, 2.5, 0.125) ~ 5e-324 ~ ' ' ~ 1e22 ~ ' ' ~ 123456789012345680.0
-7 % 3 ~ 7.5 % -2 ~ -7.5 // 2 ~ 2 ** 0.5 ~ (0 - 1) ** 3
(0 * -4) / 3
und|int
und|length ~ und|upper ~ und|list ~ (und is defined) ~ und|default('d') ~ [und]
und + 1
'ß ǆ ΑΣ İ'.upper() ~ 'ß ǆ ΑΣ İ'.lower() ~ 'o\u0301x'|length
['\u200b\xa0\x7f\U0001f600', 'a"b', "a'b", 'a\'"b', '\ue000']
""".strip().split("\n")

BODIES = [
    "{% for x in l %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}"
    "{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ x }};{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.revindex }}{% else %}none{% endfor %}",
    "{% for x in el %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% elif x == 5 %}{% break %}{% endif %}"
    "{{ x }}{% endfor %}",
    "{% for x in l %}{{ x }}{% break %}{% else %}else{% endfor %}",
    "{% for x in l %}{% if x == 3 %}{% continue %}{% endif %}{{ x }}{% else %}else{% endfor %}",
    "{% for x in [1] %}{{ s }}{% endfor %}{% set s = 2 %}{{ s }}",
    "{% for x in [1] %}{{ s }}{% endfor %}{% if n %}{% set s = 2 %}{% endif %}{{ s }}",
    "{{ n }}{% macro f() %}{{ n }}{{ s }}{% endmacro %}{{ f() }}{% set n, s = 8, 9 %}{{ f() }}",
    "{% set s = s ~ '!' %}{{ s }}{% macro n() %}m{% endmacro %}{{ n() }}",
    "{% for a, b in l %}{% endfor %}", "{% for a in nn %}{% endfor %}",
    "{% for x in ld recursive %}{{ x.n }}{{ loop.depth }}{% if x.v == 2 %}"
    "{{ loop([{'n': 'i', 'v': 0}]) }}{% endif %}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}",
    "{% set ns = namespace(found=false) %}{% for i in l %}{% if i == 1 %}"
    "{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}{{ ns.nothing }}",
    "{% set a, b = 1, [2] %}{{ a }}{{ b }}{% set x %}  in {{ s }}  {% endset %}[{{ x | trim }}]",
    "{% set x | upper %}abc{% endset %}{{ x }}{% set s.x = 1 %}",
    "{% macro f(a, b=2, c='C') %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{{ f(1) }};{{ f(1, 2, 3, 4, q=5) }};{{ f(b=7) }}",
    "{% macro f(a) %}<{{ caller(a) }}>{% endmacro %}{% call(x) f('y') %}[{{ x }}]{% endcall %}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% with x = n, y = 2 %}{{ x + y }}{% endwith %}{{ x }}",
    "{% filter upper | replace('O', '0') %}foo {{ s }}{% endfilter %}",
    "  {% if true %}\n  x\n  {% endif %}\n y {%- if true -%} \n z{% endif +%}\n w\n",
    "a {{- ' b ' -}} c {{ 1 }}\n\n{# comment #}\n{#- other -#}  \n  d\n\n",
    "{% raw %}{{ x }}{% if %}{% endraw %}\n{{ '{{' }}", "x\r\ny\rz{% if true %}\r\nq{% endif %}\r\n",
    "{% generation %}é{{ s }}{% endgeneration %}中{% generation %}b{% endgeneration %}",
    "{{ 'a'", "{% if %}{% endif %}", "{% for x in l %}", "{% endif %}", "{{ 1 + }}", "{# x",
    "{% include 'x' %}", "{% set true = 1 %}", "{{ f(a=1, 2) }}", "{{ x y }}", "{{ [1, 2 }}",
    "{% if x is defined %}{{ x | nosuch }}{% endif %}{% if not x %}{{ [1, 2,] }}{% endif %}",
    # ends of lines around tags that write nothing, tags that write, comments and raw blocks
    "{% set a = 1 %}\n  {% if 1 %}b{% endif %}\n\n  {% if 1 %}c\n  {% endif %}d",
    "{{ 1 }}\n  {% if 1 %}b{% endif %}\n{{ 2 }}\n\n{# c #}\n  {# d #}\n  {% if 1 %}e{% endif %}",
    "x{% raw %}\n  {% endraw %}y\n{% raw %}  {% endraw %}\n  {% if 1 %}z{% endif %}",
    "{%- raw -%}\n  a\n  {% endraw %}\n  {% if 1 %}b{% endif %}{% raw %}\n{% endraw %}  {% if 1 %}"
    "c{% endif %}", "\n\n  {%- if 1 -%}\n\n a \n {%- endif -%} \n b \n", "a\n{%+ if 1 +%}\nb{% endif %}",
    "{% if 1 %}\n\na{% endif %}{{ 'x\ny' }}\n\n", "  {{- 1 -}}  \n {{ 2 -}} \n  {%- set q = 1 %}\n r",
    # many, one after the other: none of them is deep
    "{{ 1 }}" * 160, "{% if 1 %}a{% endif %}" * 160, "{{ [" + "(1), " * 160 + "]|length }}",
    "{{ [" + "-1, " * 160 + "]|length }}", "{% for x in [1] %}{% break %}{% endfor %}" * 3,
]

CHATS = [
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m['content'] | trim }}"
    "{% endif %}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n"
    "{% endif %}",
    "{{ bos_token }}{% if tools %}{% for tool in tools %}{{ tool | tojson(indent=2) }}\n"
    "{{ tool.function }}{% endfor %}{% endif %}{% for m in messages %}{% if m.tool_calls %}"
    "{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments|items %}"
    "{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}){% endfor %}"
    "{% elif m.reasoning_content %}{{ m.reasoning_content }}{{ m.thinking }}{% endif %}"
    "{{ messages[loop.index0 - 1].role }}{% endfor %}",
    "{% if messages[0].role == 'system' %}{% set system, rest = messages[0].content, messages[1:] %}"
    "{% else %}{% set system, rest = '', messages %}{% endif %}{{ system }}{{ rest | length }}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate: ' ~ m.role) }}{% endif %}{% endfor %}",
]

ALIASES = "{% for m in messages %}{{ m.thinking }},{{ m.reasoning_content }},{{ m.reasoning }};{% endfor %}"


def row(template, messages, variables):
    out = {"template": template, "messages": messages, "variables": variables}
    chat = _alias_reasoning_fields(messages)
    full = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
    try:
        text, ranges = _render_with_assistant_indices(
            compiled_template=_compile_jinja_template(template), messages=chat, **full)
        out["text"] = text
        # places in bytes of UTF-8
        out["ranges"] = [[len(text[:i].encode()) for i in pair] for pair in ranges]
    except Exception as e:
        out["error"] = type(e).__name__
    return out


def lines_of(name):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name)) as file:
        return file.read().split("\n")[:-1]


EXPRESSIONS += lines_of("jinja_expressions.txt")
BODIES += lines_of("jinja_bodies.txt")
rows = [row("{{ " + e + " }}", [], VALUES) for e in EXPRESSIONS]
rows += [row(t, [], VALUES) for t in BODIES]
tokens = {"bos_token": "<s>", "eos_token": "</s>"}
for t in CHATS:
    rows.append(row(t, CHAT, {**tokens, "add_generation_prompt": True, "tools": TOOLS}))
    rows.append(row(t, CHAT[1:2], tokens))
rows.append(row(ALIASES, [
    {"role": "a", "content": "", **more} for more in [
        {}, {"reasoning": "r"}, {"thinking": "t"}, {"reasoning_content": "c"},
        {"reasoning": "r", "thinking": "t"}, {"reasoning": "r", "reasoning_content": "c"},
        {"thinking": "t", "reasoning_content": "c"}, {"reasoning": None, "thinking": "t"},
        {"reasoning_content": None, "reasoning": "r"}, {"thinking": None},
        {"reasoning_content": "", "thinking": "t"}, {"thinking": "", "reasoning": "r"}]], tokens))
for r in rows:                                      # the same values again and again
    if r["variables"] is VALUES:
        r["variables"] = None

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "jinja.json")
with open(path, "w") as out:
    out.write("[" + json.dumps(VALUES) + ",\n")
    out.write(",\n".join(json.dumps(r) for r in rows) + "]\n")
