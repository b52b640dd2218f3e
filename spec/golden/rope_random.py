# Frequencies and factors of rotary positions as transformers computes them, for random
# configurations, for spec/lua/nn_spec.lua.
#
#    python3 spec/golden/rope_random.py       writes spec/golden/rope_random.json
#
# Each row: dim, theta, rope_scaling, the length of a sequence, dim / 2 frequencies and the factor.
# Made with transformers 5.

import json
import os
import random

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

draw = random.Random(4)


def pick(*values):
    return draw.choice(values)


def yarn():
    s = {"rope_type": "yarn", "factor": pick(1.0, 2.0, 4.0, 40.0),
         "original_max_position_embeddings": pick(4, 16, 64, 4096)}
    for name, values in (("beta_fast", (8, 32, 64)), ("beta_slow", (1, 2, 0.25)),
                         ("attention_factor", (1.5,)), ("truncate", (True, False))):
        if draw.random() < 0.5:
            s[name] = pick(*values)
    if draw.random() < 0.5:
        s["mscale"], s["mscale_all_dim"] = pick(0.707, 1.0), pick(0.5, 1.0)
    return s


def longrope(dim):
    s = {"rope_type": "longrope", "original_max_position_embeddings": 16,
         "short_factor": [draw.uniform(1, 2) for _ in range(dim // 2)],
         "long_factor": [draw.uniform(2, 9) for _ in range(dim // 2)]}
    if draw.random() < 0.7:
        s["factor"] = pick(0.5, 1.0, 4.0)
    if draw.random() < 0.3 or "factor" not in s:
        s["attention_factor"] = pick(0.5, 1.25)
    return s


def make(kind, dim):
    if kind == "yarn":
        return yarn()
    if kind == "longrope":
        return longrope(dim)
    if kind == "linear":
        return {"rope_type": kind, "factor": pick(2.0, 8.0)}
    if kind == "dynamic":
        return {"rope_type": kind, "factor": pick(2.0, 8.0), "original_max_position_embeddings": 16}
    return {"rope_type": "llama3", "factor": pick(2.0, 8.0), "low_freq_factor": pick(1.0, 2.0),
            "high_freq_factor": pick(4.0, 8.0), "original_max_position_embeddings": pick(16, 256)}


rows = []
for kind in ("yarn",) * 24 + ("longrope",) * 8 + ("linear", "dynamic", "llama3") * 4:
    dim, theta, length = pick(4, 8, 12, 16), pick(100.0, 10000.0, 500000.0), pick(8, 16, 17, 100)
    s = make(kind, dim)
    given = {**s, "rope_theta": theta}
    config = LlamaConfig(hidden_size=dim, num_attention_heads=1, head_dim=dim,
                         max_position_embeddings=16, rope_parameters=given)
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    rows.append([dim, theta, s, length, frequencies.tolist(), factor])

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rope_random.json")
with open(path, "w") as out:
    out.write("[" + ",\n".join(json.dumps(r) for r in rows) + "]\n")
