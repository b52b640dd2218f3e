"""Writes spec/golden/tokenizer/*.json: small tokenizers of every kind, trained by the `tokenizers`
package on text that a formula makes, with the ids, offsets and texts that it answers.

   python spec/golden/tokenizer.py spec/golden/tokenizer
"""
import json
import os
import sys

from tokenizers import (Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

WORDS = """the quick function return über naïve données привет мир こんにちは 世界 中文字 测试 한국어
 مرحبا שלום 😀 👨‍👩‍👧 x+=1 if(a<b){ 12345 0.5 don't I'll HELLO CamelCase _foo_bar ﬁ ① … — /**/""".split()
SEPARATORS = [" ", " ", " ", "", "\n", "\t", "  ", "\u00a0", "\r\n", "\u200b"]

state = 1


def draw(n):
    """A number below n from a linear congruential generator."""
    global state
    state = (state * 1103515245 + 12345) % 2**31
    return (state >> 8) % n


def char():
    first, count = [(32, 95), (0xA0, 0x1B0), (0x400, 0x50), (0x4E00, 64), (1, 31), (0x300, 8),
                    (0x1F600, 16)][draw(7)]
    return chr(first + draw(count))


def text(n):
    out = []
    for _ in range(n):
        word = WORDS[draw(len(WORDS))] if draw(5) else "".join(char() for _ in range(1 + draw(6)))
        out.append(word + SEPARATORS[draw(len(SEPARATORS))])
    return "".join(out)


CORPUS = [text(60) for _ in range(120)]
P = pre_tokenizers
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTES = ["<0x%02X>" % b for b in range(256)]


def byte_level(pre, normalizer=None):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<|endoftext|>", "<|im_start|>"],
        initial_alphabet=P.ByteLevel.alphabet(), show_progress=False))
    return t


def split_then_bytes(pattern):
    return P.Sequence([P.Split(Regex(pattern), "isolated"),
                       P.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3():
    t = byte_level(split_then_bytes(CL100K))
    t.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    value = json.loads(t.to_str())
    value["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(value))


def added():
    t = byte_level(P.ByteLevel(add_prefix_space=True))
    from tokenizers import AddedToken
    t.add_tokens([AddedToken("foo", single_word=True), AddedToken("<sep>", lstrip=True),
                  AddedToken("<cut>", rstrip=True), AddedToken("  ", normalized=False)])
    t.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return t


def llama2(metaspace):
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                   decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=520, limit_alphabet=80, max_token_length=12,
        special_tokens=["<unk>", "<s>", "</s>"] + BYTES, show_progress=False))
    value = json.loads(t.to_str())
    for token in value["added_tokens"]:
        token["special"] = token["id"] < 3
    value["added_tokens"] = value["added_tokens"][:3]
    t = Tokenizer.from_str(json.dumps(value))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    if metaspace:
        t.normalizer = normalizers.Sequence([])
        t.pre_tokenizer = P.Metaspace(prepend_scheme="first", split=False)
        t.decoder = decoders.Sequence([decoders.Metaspace(prepend_scheme="first"),
                                       decoders.ByteFallback(), decoders.Fuse()])
    return t


def t5():
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(),
                                         normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer = P.Sequence([P.WhitespaceSplit(), P.Metaspace()])
    t.decoder = decoders.Metaspace()
    t.train_from_iterator([s for s in CORPUS[:30]], trainers.UnigramTrainer(
        vocab_size=700, unk_token="<unk>", special_tokens=["<pad>", "</s>", "<unk>"],
        show_progress=False))
    t.post_processor = processors.TemplateProcessing(single="$A </s>",
                                                     special_tokens=[("</s>", 1)])
    return t


def bert(lowercase):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    t.pre_tokenizer, t.decoder = P.BertPreTokenizer(), decoders.WordPiece()
    t.train_from_iterator(CORPUS, trainers.WordPieceTrainer(
        vocab_size=420, limit_alphabet=120, show_progress=False,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return t


KINDS = {
    "gpt2": lambda: byte_level(P.ByteLevel(add_prefix_space=False)),
    "added": added,
    "llama3": llama3,
    "qwen2": lambda: byte_level(split_then_bytes(CL100K.replace("{1,3}", "")), normalizers.NFC()),
    "falcon": lambda: byte_level(P.Sequence([P.Punctuation(), P.ByteLevel(add_prefix_space=False),
                                             P.Digits()])),
    "llama2": lambda: llama2(False),
    "llama2_metaspace": lambda: llama2(True),
    "t5": t5,
    "bert": lambda: bert(True),
    "bert_cased": lambda: bert(False),
}


def texts(t):
    special = [token.content for token in t.get_added_tokens_decoder().values()]
    pick = lambda: special[draw(min(len(special), 8))]
    list_ = ["", " ", "  a", "a\n\nb", "foo foobar foo", "x <sep> y <cut> z", "a" * 300]
    for n in [1, 2, 3, 5, 8, 13, 40]:
        list_.append(text(n))
        list_.append(text(n) + pick() + text(2) + pick())
    return list_


def cases(t):
    out = []
    for s in texts(t):
        with_template, plain = t.encode(s), t.encode(s, add_special_tokens=False)
        t.encode_special_tokens = True
        user = t.encode(s, add_special_tokens=False)
        t.encode_special_tokens = False
        out.append({"text": s, "ids": with_template.ids, "plain": plain.ids, "user": user.ids,
                    "offsets": plain.offsets, "decoded": t.decode(with_template.ids),
                    "special": t.decode(with_template.ids, skip_special_tokens=False)})
    return out


def main(folder):
    os.makedirs(folder, exist_ok=True)
    for name, make in KINDS.items():
        t = make()
        value = {"tokenizer": json.loads(t.to_str()), "cases": cases(t)}
        with open(os.path.join(folder, name + ".json"), "w") as f:
            json.dump(value, f, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    main(sys.argv[1])
