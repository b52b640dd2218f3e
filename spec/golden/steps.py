# Runs normalizers, pre-tokenizers and decoders of the package tokenizers, for
# spec/lua/tokenizer_spec.lua and spec/lua/tokenizer_parts_spec.lua.
#
#    python3 spec/golden/steps.py             writes spec/golden/steps.json
#
# Each row: the node of a tokenizer.json, a text, and what the step makes of it: a text
# (normalizers) or the list of its pieces (pre-tokenizers); or the node of a decoder, a list of
# tokens and their text; or the flags of an added token "ab" or "\n\n", a text and its ids (0: an
# unknown word, 1: the token). Made with tokenizers 0.23.3.

import itertools
import json
import os

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

BERT = "Àb\x01\tc中d"
NORMALIZERS = [
    ({"type": "Lowercase"}, "ÀbC Ω"),
    ({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}, "àé x̂"),
    ({"type": "Strip", "strip_left": True, "strip_right": False}, "  ab  "),
    ({"type": "Strip", "strip_left": False, "strip_right": True}, "  ab  "),
    ({"type": "Replace", "pattern": {"String": "a.b"}, "content": "x"}, "a.b axb"),
    ({"type": "Replace", "pattern": {"Regex": "a.b"}, "content": "x"}, "a.b axb"),
    ({"type": "Prepend", "prepend": "_"}, "ab"),
    ({"type": "Nmt"}, "a\x01b\x0bc\td\u200be\x7ff"),
    ({"type": "ByteLevel"}, "é a"),
    ({"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
      "lowercase": True}, "a\u0378b\ue000c\u200bd\U0010ffffe\u00adf"),
] + [({"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese,
       "strip_accents": strip, "lowercase": lower}, BERT)
     for clean, chinese, strip, lower in itertools.product(
         (True, False), (True, False), (None, True, False), (True, False))]


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": "_", "prepend_scheme": scheme, "split": split}


PRE_TOKENIZERS = [
    ({"type": "Whitespace"}, "a_b, cd!? é"), ({"type": "WhitespaceSplit"}, " a_b,  c "),
    ({"type": "Whitespace"}, "می\u200cخواهم a\u200d-x² ½ Ⅷ ⓐ \u200b\u0345"),
    ({"type": "CharDelimiterSplit", "delimiter": "-"}, "a-b--c"),
    ({"type": "Digits", "individual_digits": True}, "a12b"),
    ({"type": "Digits", "individual_digits": False}, "a12b"),
    ({"type": "Punctuation", "behavior": "Isolated"}, "a!?b"),
    ({"type": "Punctuation", "behavior": "Removed"}, "a!?b"),
    ({"type": "Punctuation", "behavior": "Contiguous"}, "a!?b"),
    ({"type": "BertPreTokenizer"}, " a!  b?"),
    (metaspace("always", True), "a b  c"), (metaspace("never", True), "a b"),
    (metaspace("first", False), "a b"), (metaspace("always", True), " a"),
    ({"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
     "ab c's"),
    ({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
     "ab c's"),
    ({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
                                            {"type": "Digits", "individual_digits": True}]},
     "a1 22"),
] + [({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}, text)
     for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
     for invert in (False, True)
     for pattern, text in (({"Regex": "[-.]"}, "-a.-b-"), ({"String": "."}, "a..b"))] + [
    ({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
     "x²\u200cy¾ -\u200d_é\u0301٣Ⅷⓐ") for pattern in (r"\w+", r"\W+", r"[\w-]+")]


def llama(start, **more):
    return {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": start, "stop": 0}]}


MARKED = ["▁a", "b▁c", "▁▁", "d", "▁"]
BYTES = ["▁▁▁a", "<0xE4>", "<0xB8>", "<0x96>", "b", "<0xE4>", "<0xB8>", "<0xE4>", "c", "<0xZZ>",
         "<0x41>", "<0x7F>", "<0x80>"]
WORDS = ["a", "##b", "c", ".", "x##", "!", "do", "n't", "'s", "##", "I", "'m", "it", "'", "q", "?",
         ",", "we", "'ve", "'re", " do not", "##.c"]
DECODERS = [({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}, tokens)
            for scheme in ("always", "first", "never") for tokens in (MARKED, MARKED[1:], MARKED[2:])] + [
    ({"type": "WordPiece", "prefix": prefix, "cleanup": cleanup}, tokens)
    for prefix in ("##", "n") for cleanup in (True, False) for tokens in (WORDS, WORDS[1:])] + [
    ({"type": "BPEDecoder", "suffix": "</w>"}, tokens)
    for tokens in (["ab</w>", "c", "d</w>"], ["a</w>b", "c"], ["</w>"], ["a", "b</w>"])] + [
    (llama(start), tokens) for start in (0, 1, 2)
    for tokens in (BYTES, BYTES[1:], ["a", "▁b"], ["▁"], ["▁", "▁", "▁a"], ["<0x20>", "<0x20>", "b"])] + [
    ({"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, tokens)
    for tokens in (["Ġa", "Ã", "©", "Ġ"], ["Ã", "a"], ["ä¸", "ĸ", "b"], ["世"], ["ä¸", "ä¸ĸ"])] + [
    ({"type": "Replace", "pattern": {"String": "a."}, "content": "%1"}, ["a.b", "axb", "xa."]),
    ({"type": "Fuse"}, ["a", "b"]),
    ({"type": "Sequence", "decoders": []}, ["a", "b"]),
]


NEIGHBOURS = ["", " ", ".", "。", "—", "“", "😀", "\u200b", "²", "½", "_", "é", "世", "\u0301", "٣",
              "\u200d", "ⓐ", "Ⅷ", "\u203f", "\u0378"]
ADDED = [({"single_word": True}, "ab", left + "ab" + right) for one in NEIGHBOURS
         for left, right in ((one, ""), ("", one))] + [
    ({"lstrip": left, "rstrip": right}, "\n\n", text)
    for left in (False, True) for right in (False, True)
    for text in ("x\n\n\n\n\nx", "\n\n \n\n", "x \n\n\n \n\n\nx")]


def ids_of(flags, token, text):
    """The ids of a text where `token` is added to a vocabulary of one word."""
    t = Tokenizer(WordLevel({"x": 0}, unk_token="x"))
    t.add_tokens([AddedToken(token, normalized=False, **flags)])
    return t.encode(text).ids


def whole(**fields):
    """The steps of a tokenizer of these fields."""
    file = json.loads(Tokenizer(WordLevel({"a": 0}, unk_token="a")).to_str())
    return Tokenizer.from_str(json.dumps({**file, **fields}))


rows = {"normalizer": [[node, text, whole(normalizer=node).normalizer.normalize_str(text)]
                       for node, text in NORMALIZERS],
        "pre_tokenizer": [[node, text, [piece for piece, _ in whole(
            pre_tokenizer=node).pre_tokenizer.pre_tokenize_str(text)]]
            for node, text in PRE_TOKENIZERS],
        "decoder": [[node, tokens, whole(decoder=node).decoder.decode(tokens)]
                    for node, tokens in DECODERS],
        "added": [[flags, token, text, ids_of(flags, token, text)]
                  for flags, token, text in ADDED]}
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "steps.json")
with open(path, "w") as out:
    out.write("{" + ",\n".join('"%s": [\n%s]' % (name, ",\n".join(json.dumps(r) for r in list_))
                               for name, list_ in rows.items()) + "}\n")
