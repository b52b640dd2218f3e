# Writes lua/tide/chat/unicode_data.lua: case mappings and printable characters beyond ASCII, as
# Python's str has them.
#
#    python3 spec/golden/unicode.py > lua/tide/chat/unicode_data.lua

import textwrap
import unicodedata


def characters():
    return (c for c in range(128, 0x110000) if not 0xD800 <= c < 0xE000)


# Runs (first, count, step, delta) of characters that map to one other, and the others as text.
def mapping(fn):
    rows, special = [], []
    for c in characters():
        u = fn(chr(c))
        if u == chr(c):
            continue
        if len(u) > 1:
            special.append((c, u))
            continue
        delta, last = ord(u) - c, rows[-1] if rows else None
        step = last and c - (last[0] + (last[1] - 1) * max(last[2], 1))
        if last and last[3] == delta and step in (1, 2) and last[2] in (0, step):
            last[1], last[2] = last[1] + 1, step
        else:
            rows.append([c, 1, 0, delta])
    return rows, special


def lua_text(name, words):
    text = textwrap.wrap(" ".join(words), 92)
    print(f"data.{name} = [[\n" + "\n".join("   " + line for line in text) + "]]\n")


print("-- Case mappings and printable characters beyond ASCII (Unicode",
      unicodedata.unidata_version + "); made by\n-- spec/golden/unicode.py.\n--\n"
      "-- upper, lower: runs first:count:step:delta of code points; upper_special: code point=text;\n"
      "-- printable: lengths of runs from 128 on, alternately of characters that Python's repr\n"
      "-- escapes and of those that it writes.\n\nlocal data = {}\n")
for name, fn in (("upper", str.upper), ("lower", str.lower)):
    rows, special = mapping(fn)
    lua_text(name, [f"{c}:{n}:{max(step, 1)}:{delta}" for c, n, step, delta in rows])
    if name == "upper":
        lua_text("upper_special", [f"{c}={u}" for c, u in special])
runs, before, start = [], False, 128
for c in range(128, 0x110000):
    if chr(c).isprintable() != before:
        runs.append(str(c - start))
        before, start = not before, c
lua_text("printable", runs)
print("return data")
