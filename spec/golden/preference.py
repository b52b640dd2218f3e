"""Losses of preference learning and their gradients, of models of the `transformers` package.

    python spec/golden/preference.py > spec/golden/preference.lua

Three pairs of answers, each run by itself. Log-probabilities are those of `log_softmax`, summed over
an answer (for IPO their mean), and the losses the formulas of the papers (arXiv 2305.18290,
2310.12036) as the package `trl` computes them: logsigmoid of beta times the difference to the
reference, with label smoothing; the square of the difference less 1 / (2 beta). Weights are sines by
the place of the parameter's name in sorted order (see common.py). Written for each variant:
config.json, the loss, the log-probabilities, and the norms of the gradients in the order of the
names of the parameters, all computed in doubles.
"""
import json

import torch
import torch.nn.functional as F
import transformers as T

from common import fill, parameters_of, wrapped

V = 23
BASE = dict(vocab_size=V, hidden_size=24, intermediate_size=20, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=2, head_dim=4, rms_norm_eps=1e-5,
            max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
CASES = [
    ("sigmoid", "Llama", dict(), dict(kind="sigmoid", beta=0.3, smoothing=0.0)),
    ("smoothed", "Llama", dict(tie_word_embeddings=True),
     dict(kind="sigmoid", beta=0.2, smoothing=0.15)),
    ("ipo", "Llama", dict(), dict(kind="ipo", beta=0.4, smoothing=0.0)),
    ("capped", "Gemma2", dict(final_logit_softcapping=3.0, query_pre_attn_scalar=4,
                              sliding_window=64),
     dict(kind="sigmoid", beta=0.3, smoothing=0.0)),
]
# ids of a prompt and an answer, and where the answer begins
ANSWERS = [([5, 3, 8, 1, 2, 9], 2), ([5, 3, 7, 7], 2), ([11, 4, 6, 20, 13], 3),
           ([11, 4, 6, 2, 17, 19, 1, 22], 3), ([1, 9], 1), ([1, 15, 3], 1)]
REFERENCE = [-13.0, -6.5, -7.25, -16.0, -3.5, -5.75]


def loss_of(sums, counts, o):
    ref = torch.tensor(REFERENCE, dtype=torch.float64)
    if o["kind"] == "ipo":
        sums, ref = sums / counts, ref / counts
    d = (sums[0::2] - sums[1::2]) - (ref[0::2] - ref[1::2])
    b, e = o["beta"], o["smoothing"]
    if o["kind"] == "ipo":
        return ((d - 1 / (2 * b)) ** 2).mean()
    return (-F.logsigmoid(b * d) * (1 - e) - F.logsigmoid(-b * d) * e).mean()


def run(name, kind, extra, o):
    config = getattr(T, kind + "Config")(**{**BASE, **extra})
    config._attn_implementation = "eager"
    cls = getattr(T, kind + "ForCausalLM")
    model = cls(config).double().eval()
    model.get_input_embeddings().padding_idx = None
    named = parameters_of(model)
    fill(named, 0 if kind == "Gemma2" else 1)
    sums, counts = [], []
    for ids, first in ANSWERS:
        x = torch.tensor([ids])
        logp = model(x).logits[0].double().log_softmax(-1)
        sums.append(sum(logp[t - 1, ids[t]] for t in range(first, len(ids))))
        counts.append(len(ids) - first)
    sums = torch.stack(sums)
    loss = loss_of(sums, torch.tensor(counts, dtype=torch.float64), o)
    loss.backward()
    config.architectures = [cls.__name__]
    print(f"   {name} = {{")
    print("      config = [==[\n" + wrapped(json.dumps(json.loads(config.to_json_string())))
          + "]==],")
    print(f"      kind = '{o['kind']}', beta = {o['beta']}, label_smoothing = {o['smoothing']},")
    print(f"      loss = {loss.item():.15g},")
    print("      sums = {\n" + wrapped(", ".join(f"{v.item():.15g}" for v in sums)) + "\n      },")
    norms = ", ".join(f"{float(named[n].grad.norm()):.12g}" for n in sorted(named))
    print("      grads = {\n" + wrapped(norms) + "\n      },\n   },")


print(f"-- Written by spec/golden/preference.py: torch {torch.__version__},"
      f"\n-- on models of transformers {T.__version__}.\n\nreturn {{")
print("   answers = {")
for ids, first in ANSWERS:
    print(f"      {{ ids = {{ {', '.join(map(str, ids))} }}, first = {first} }},")
print("   },\n   reference = { " + ", ".join(map(str, REFERENCE)) + " },\n   cases = {")
for case in CASES:
    run(*case)
print("   },\n}")
