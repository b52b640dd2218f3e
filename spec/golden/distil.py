"""Losses of distillation and the gradients of the student, of models of the `transformers` package.

    python spec/golden/distil.py > spec/golden/distil.lua

The divergence is `torch.nn.functional.kl_div` of log-probabilities of logits / temperature, times
temperature ^ 2 and alpha, and 1 - alpha times the cross entropy with the labels; both are means over
the labels that count. Of `top`, the teacher's probabilities are those of its K largest logits by
themselves. Weights are sines by the place of the parameter's name in sorted order (see common.py).
Written for each variant: config.json of student and teacher, the loss, and the norms of the
gradients in the order of the names of the parameters, all computed in doubles.
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
    ("forward", ("Llama", dict()), ("Llama", dict(hidden_size=36, num_hidden_layers=3)),
     dict(kind="forward", temperature=2.0, alpha=0.6)),
    ("reverse", ("Llama", dict(tie_word_embeddings=True)), ("Llama", dict(hidden_size=36)),
     dict(kind="reverse", temperature=1.5, alpha=1.0)),
    ("capped", ("Gemma2", dict(final_logit_softcapping=3.0, query_pre_attn_scalar=4,
                               sliding_window=64)),
     ("Gemma2", dict(hidden_size=36, final_logit_softcapping=2.0, query_pre_attn_scalar=4,
                     sliding_window=64)), dict(kind="forward", temperature=1.0, alpha=0.5)),
    ("top", ("Llama", dict()), ("Llama", dict(hidden_size=36)),
     dict(kind="forward", temperature=2.0, alpha=0.6, top=5)),
]


def made(kind, extra):
    config = getattr(T, kind + "Config")(**{**BASE, **extra})
    config._attn_implementation = "eager"
    cls = getattr(T, kind + "ForCausalLM")
    model = cls(config).double().eval()
    model.get_input_embeddings().padding_idx = None
    named = parameters_of(model)
    fill(named, 0 if kind == "Gemma2" else 1)
    config.architectures = [cls.__name__]
    return model, named, "[==[\n" + wrapped(json.dumps(json.loads(config.to_json_string()))) + "]==]"


def run(name, student, teacher, o):
    model, named, config = made(*student)
    large, _, large_config = made(*teacher)
    ids = torch.tensor([[(7 * i + 3 * b + i * i) % V for i in range(9)] for b in range(2)])
    labels = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)
    labels[0, 2] = -100
    counts = labels != -100
    t = o["temperature"]
    z, zt = model(ids).logits.double()[counts], large(ids).logits.detach().double()[counts]
    ls = (z / t).log_softmax(-1)
    if "top" in o:
        kept = zt.topk(o["top"])
        zt = torch.full_like(zt, -1e30).scatter(1, kept.indices, kept.values)
    lt = (zt / t).log_softmax(-1)
    a, b = (ls, lt) if o["kind"] == "forward" else (lt, ls)
    kl = F.kl_div(a, b, log_target=True, reduction="sum") / counts.sum()
    loss = o["alpha"] * t * t * kl + (1 - o["alpha"]) * F.cross_entropy(z, labels[counts])
    loss.backward()
    print(f"   {name} = {{")
    print(f"      config = {config},")
    print(f"      teacher = {{ config = {large_config} }},")
    print(f"      kind = '{o['kind']}', temperature = {t}, alpha = {o['alpha']}, top = "
          f"{o.get('top', 'nil')},")
    print(f"      loss = {loss.item():.15g},")
    norms = ", ".join(f"{float(named[n].grad.norm()):.12g}" for n in sorted(named))
    print("      grads = {\n" + wrapped(norms) + "\n      },\n   },")


print(f"-- Written by spec/golden/distil.py: torch {torch.__version__},"
      f"\n-- on models of transformers {T.__version__}.\n\nreturn {{")
for case in CASES:
    run(*case)
print("}")
