"""Golden values of the gated delta rule from transformers, in f64.

    python spec/golden/gated_delta.py      (writes gated_delta.safetensors beside it)

The tensors of case C are named "C.q", "C.k" and so on: inputs, do and dlast (the gradients of the
results), the results o and last, and the gradients of the inputs. The numbers are those of
torch_chunk_gated_delta_rule of Qwen3-Next, held against torch_recurrent_gated_delta_rule to 1e-10
before anything is written. Inputs are rounded to f32 first. Of a packed stream each sequence runs by
itself.
"""
import os

import torch
import safetensors.torch as st
from common import as_f32, doubles_only
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

doubles_only()


def rand(*shape):
    return torch.randn(*shape).to(torch.bfloat16).double()


def rule(function, i, norm, part, state):
    args = [i[n][:, part] for n in ("q", "k", "v", "g", "beta")]
    return function(*args, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=norm)


def both(i, norm, cu):
    out = []
    for lo, hi in zip(cu, cu[1:]):
        state = i["initial"] if lo == 0 else torch.zeros_like(i["initial"])
        o, last = rule(qwen.torch_chunk_gated_delta_rule, i, norm, slice(lo, hi), state)
        want, end = rule(qwen.torch_recurrent_gated_delta_rule, i, norm, slice(lo, hi), state)
        assert (o - want).abs().max() < 1e-10 and (last - end).abs().max() < 1e-10
        out.append(o)
    return torch.cat(out, 1), last


def case(into, name, b, t, hk, hv, dk, dv, norm=True, cu=None):
    i = {"q": rand(b, t, hk, dk), "k": rand(b, t, hk, dk), "v": rand(b, t, hv, dv),
         "g": -rand(b, t, hv).abs(), "beta": rand(b, t, hv).sigmoid().bfloat16().double(),
         "initial": rand(b, hv, dk, dv)}
    if not norm:
        i["k"] /= 4
    for v in i.values():
        v.requires_grad_()
    o, last = both(i, norm, cu or [0, t])
    d = {"do": rand(*o.shape), "dlast": rand(*last.shape)}
    torch.autograd.backward([o, last], list(d.values()))
    out = dict(i, o=o, last=last, **d, **{"d" + k: v.grad for k, v in i.items()})
    into.update({name + "." + k: as_f32(v) for k, v in out.items()})
    if cu:
        numbers = [sum(c <= k for c in cu[1:]) for k in range(t)]
        into[name + ".sequence"] = torch.tensor([numbers], dtype=torch.int32)


torch.manual_seed(3)
cases = {}
case(cases, "groups", 2, 21, 2, 4, 5, 3)
case(cases, "long", 1, 150, 1, 1, 6, 4)
case(cases, "packed", 1, 75, 1, 3, 4, 5, cu=[0, 1, 4, 70, 75])
case(cases, "no_norm", 1, 9, 2, 2, 4, 4, norm=False)
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gated_delta.safetensors")
st.save_file({k: v.contiguous() for k, v in cases.items()}, path)
os.chmod(path, 0o644)
