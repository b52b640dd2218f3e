"""Writes spec/golden/harness.json: figures of tiny models by the rules of lm-evaluation-harness.

   python spec/golden/harness.py > spec/golden/harness.json
   python spec/golden/harness.py --lm-eval        # compares the rules below with that package

Tokenizers are those of spec/golden/tokenizer; models and weights as in folders.py, computed by the
`transformers` package in doubles.
"""
import json
import math
import os
import re
import sys
import tempfile

import torch
import transformers as T
from tokenizers import Tokenizer

from common import fill, parameters_of

HERE = os.path.dirname(os.path.abspath(__file__))
TEXT = ("the quick function  returned\tnothing; \u4e16\u754c and na\u00efve caf\u00e9s.\n\nif (a < b) {\n"
        "   x += 12345 }\u00a0 \u3000end of the text, it's \U0001f600 over \n ")
QUESTIONS = [
    ("The quick function", ["returns", "is over", "x += 1"], 0),
    ("Question: 1 + 1?\nAnswer:", ["2", "the number three", "no", "5"], 1),
    ("white space at the end \u3000\n", ["stays", "goes"], 1),
    ("", ["nothing", "before", "it"], 2),
    ("a question that is much longer than a window of a few tokens can hold at once, or so",
     ["yes", "no", "caf\u00e9 na\u00efve"], 0),
    ("letters:", ["A", "B", "C", "A"], 3),
    ("\u4e16\u754c", ["\u4e2d\u6587\u5b57", "\u0448\u0448", "quick"], 1),
]
CASES = [
    ("llama2", "Llama", dict(max_position_embeddings=24)),
    ("gpt2", "GPT2", dict(n_embd=24, n_layer=2, n_head=4, n_positions=16)),
]


def tokenizer_of(name):
    value = json.load(open(os.path.join(HERE, "tokenizer", name + ".json")))["tokenizer"]
    return Tokenizer.from_str(json.dumps(value))


def special_of(name):
    return {"llama2": {"bos_token": "<s>", "eos_token": "</s>"},
            "gpt2": {"eos_token": "<|endoftext|>"}}[name]


def model_of(kind, more, vocab):
    base = dict(vocab_size=vocab, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    if kind == "Llama":
        base.update(hidden_size=24, intermediate_size=20, num_hidden_layers=2,
                    num_attention_heads=6, num_key_value_heads=2, head_dim=4)
    config = getattr(T, kind + "Config")(**base, **more)
    model = (T.GPT2LMHeadModel if kind == "GPT2" else T.LlamaForCausalLM)(config).double().eval()
    fill(parameters_of(model))
    return model


class Rules:
    """The rules, from ids to figures."""

    def __init__(self, tokenizer, model, special, most):
        self.tok, self.model, self.most = tokenizer, model, most
        self.prefix = tokenizer.token_to_id(special.get("bos_token", special["eos_token"]))

    def encode(self, text, bare=False):
        return self.tok.encode(text, add_special_tokens=not bare).ids

    def score(self, context, rest):
        ids = (context + rest)[-(self.most + 1):]
        with torch.no_grad():
            z = self.model(torch.tensor([ids[:-1]])).logits.log_softmax(-1)[0]
        return [z[len(ids) - 1 - len(rest) + i, t].item() for i, t in enumerate(rest)]

    def windows(self, ids):
        """Disjoint windows; the last one is filled up with context."""
        ids, at = [self.prefix] + ids, 1
        while at < len(ids):
            end = min(at + self.most, len(ids))
            yield ids[max(0, min(at - 1, end - 1 - self.most)):at], ids[at:end]
            at = end

    def perplexity(self, text):
        values = [v for a, b in self.windows(self.encode(text)) for v in self.score(a, b)]
        total = sum(values)
        words, size = len(re.split(r"\s+", text)), len(text.encode())
        return dict(logprob=total, tokens=len(values), words=words, bytes=size,
                    word_perplexity=math.exp(-total / words),
                    byte_perplexity=math.exp(-total / size),
                    bits_per_byte=-total / size / math.log(2))

    def pair(self, context, rest):
        kept = context.rstrip()
        if kept == "":
            ids = self.encode(context + rest, bare=True)
            return ([self.prefix], ids) if ids[0] != self.prefix else (ids[:1], ids[1:])
        whole, front = self.encode(context + rest), self.encode(kept)
        return front, whole[len(front):]

    def choices(self, questions):
        return [[sum(self.score(*self.pair(q, " " + c))) for c in choices]
                for q, choices, _ in questions]


def first_best(values):
    return max(range(len(values)), key=lambda i: (values[i], -i))


def accuracy(questions, values, length):
    right = [float(first_best([v / length(c) for v, c in zip(row, q[1])]) == q[2])
             for q, row in zip(questions, values)]
    mean = sum(right) / len(right)
    return mean, math.sqrt(sum((x - mean) ** 2 for x in right) / (len(right) - 1) / len(right))


def figures(name, kind, more):
    tokenizer = tokenizer_of(name)
    model = model_of(kind, more, tokenizer.get_vocab_size())
    most = more.get("max_position_embeddings", more.get("n_positions"))
    rules = Rules(tokenizer, model, special_of(name), most)
    values = rules.choices(QUESTIONS)
    out = dict(tokenizer=name, special=special_of(name), config=model.config.to_json_string(),
               seq=most, text=rules.perplexity(TEXT), values=values)
    for rule, length in (("acc", lambda c: 1), ("acc_norm", len),
                         ("acc_bytes", lambda c: len(c.encode()))):
        out[rule], out[rule + "_stderr"] = accuracy(QUESTIONS, values, length)
    return out, rules, model, tokenizer


def compare(out, model, tokenizer, special):
    """Prints the largest difference from what lm-evaluation-harness answers."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder + "/tokenizer.json")
        fast = T.PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json", **special)
    lm = HFLM(pretrained=model, tokenizer=fast, batch_size=3, max_length=out["seq"], device="cpu")

    def ask(kind, *arguments):
        return [Instance(request_type=kind, doc={}, arguments=a, idx=0) for a in arguments]

    rolled = lm.loglikelihood_rolling(ask("loglikelihood_rolling", (TEXT,)))[0]
    pairs = [(q, " " + c) for q, choices, _ in QUESTIONS for c in choices]
    got = [v for v, _ in lm.loglikelihood(ask("loglikelihood", *pairs))]
    want = [v for row in out["values"] for v in row]
    print(out["tokenizer"], abs(rolled - out["text"]["logprob"]),
          max(abs(a - b) for a, b in zip(got, want)))


def main():
    rows = []
    for name, kind, more in CASES:
        out, _, model, tokenizer = figures(name, kind, more)
        if sys.argv[1:] == ["--lm-eval"]:
            compare(out, model, tokenizer, special_of(name))
        rows.append(out)
    if sys.argv[1:] != ["--lm-eval"]:
        json.dump(dict(text=TEXT, questions=QUESTIONS, cases=rows), sys.stdout, indent=1)
        print()


if __name__ == "__main__":
    main()
