"""Golden values of attention from PyTorch: forward, lse and gradients for each kind of mask.

    python spec/golden/attention.py spec/golden/attention

writes index.lua, a table

    return { { name = ..., file = "x.bin", causal = ..., q = { shape = { ... }, at = 0 }, ... } }

and one file a case that holds its tensors, row-major, as little-endian f32 (i32 for q_index and
k_index), each from byte `at` on. Attributes carry the
names of tide_attention_attrs; absent ones have the default. Layouts are tide's: q, out, dout, dq
are [B, Tq, H, D], k and v [B, Tk, Hk, D], lse [B, H, Tq], bias and dbias [B, H, Tq, Tk].

Masks that scaled_dot_product_attention can express are made by it, in f64, and the explicit formula
below must agree to 1e-12; lse, documents and softcap come from the formula. dlse, where present, is
the gradient that flows in through lse.
"""

import math
import os
import struct
import sys

import torch
import torch.nn.functional as F

H, D = 2, 8


def visible(case, tq, tk):
    """[B or 1, 1, Tq, Tk] of bool, from the rules of the mask."""
    if "q_index" in case:
        qd, qp = case["q_index"][..., 0], case["q_index"][..., 1]
        kd, kp = case["k_index"][..., 0], case["k_index"][..., 1]
    else:
        qd, kd = torch.zeros(1, tq, dtype=torch.int32), torch.zeros(1, tk, dtype=torch.int32)
        qp = (case.get("q_start", 0) + torch.arange(tq)).view(1, tq)
        kp = torch.arange(tk).view(1, tk)
    until = case["q_index"][..., 2] if case.get("q_index", qd[..., None]).shape[-1] > 2 else qp
    dist = qp[:, :, None].long() - kp[:, None, :].long()
    see = (qd[:, :, None] == kd[:, None, :]) & (qd[:, :, None] >= 0)
    if case.get("causal"):
        see &= kp[:, None, :].long() <= until[:, :, None].long()
    if case.get("window_left", -1) >= 0:
        see &= dist <= case["window_left"]
    if case.get("window_right", -1) >= 0:
        see &= -dist <= case["window_right"]
    return see[:, None]


def explicit(case, q, k, v, bias, see):
    """out, lse by the definition; q, k, v are [B, H, T, D] with k, v already repeated."""
    s = q @ k.transpose(-1, -2) * case.get("scale", 1 / math.sqrt(q.shape[-1]))
    if "softcap" in case:
        s = case["softcap"] * torch.tanh(s / case["softcap"])
    if bias is not None:
        s = s + bias
    s = s.masked_fill(~see, -math.inf)
    some = see.any(-1)  # queries that see nothing: out 0, lse -inf, no gradient
    safe = torch.where(some[..., None], s, torch.zeros_like(s))
    lse = torch.logsumexp(safe, -1)
    p = torch.where(see, torch.exp(safe - lse[..., None]), torch.zeros_like(s))
    return p @ v, lse, some.expand(lse.shape)


def compute(case):
    b, tq, tk, hk = case.get("b", 1), case.get("tq", 40), case.get("tk", 40), case.get("hk", H)
    dv = case.get("dv", D)
    gen = torch.Generator().manual_seed(case["seed"])

    def draw(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float32).double()

    q, k, v = draw(b, tq, H, D), draw(b, tk, hk, D), draw(b, tk, hk, dv)
    dout = draw(b, tq, H, dv)
    bias = draw(b, H, tq, tk) if case.get("with_bias") else None
    leaves = [t for t in (q, k, v, bias) if t is not None]
    for t in leaves:
        t.requires_grad_()

    heads = [t.transpose(1, 2) for t in (q, k, v)]
    for i in (1, 2):
        heads[i] = heads[i].repeat_interleave(H // hk, dim=1)
    see = visible(case, tq, tk)
    out, lse, some = explicit(case, *heads, bias, see)
    if "softcap" not in case and bool(some.all()):
        mask = torch.zeros(see.shape, dtype=torch.float64).masked_fill(~see, -math.inf)
        peer = F.scaled_dot_product_attention(
            *heads, attn_mask=mask if bias is None else mask + bias, scale=case.get("scale"))
        assert (peer - out).abs().max() < 1e-12, case["name"]
        out = peer
    total = (out.transpose(1, 2) * dout).sum()
    result = dict(q=q, k=k, v=v, dout=dout)
    if case.get("with_dlse"):
        result["dlse"] = draw(b, H, tq)
        total = total + (torch.where(some, lse, torch.zeros_like(lse)) * result["dlse"]).sum()
    grads = torch.autograd.grad(total, leaves)
    result.update(out=out.transpose(1, 2), dq=grads[0], dk=grads[1], dv_=grads[2])
    result["lse"] = torch.where(some, lse, torch.full_like(lse, -math.inf))
    if bias is not None:
        result.update(bias=bias, dbias=grads[3])
    for name in ("q_index", "k_index"):
        if name in case:
            result[name] = case[name]
    return result


def packed(lengths, total):
    """One row of (document, position) pairs; what is left over belongs to no document."""
    rows = [(doc, i) for doc, n in enumerate(lengths) for i in range(n)]
    rows += [(-1, 0)] * (total - len(rows))
    return torch.tensor([rows], dtype=torch.int32)


def zigzag(index, parts):
    """The tokens in the order in which rank 0 of a ring holds them: first and last chunk first."""
    chunks = list(torch.chunk(index, 2 * parts, dim=1))
    return torch.cat([c for i in range(parts) for c in (chunks[i], chunks[-1 - i])], dim=1)


def with_until(index, runs):
    """The index with a third number: the position of the last token of its run [first, end)."""
    until = index[..., 1].clone()
    for first, end in runs:
        until[:, first:end] = index[:, end - 1 : end, 1]
    return torch.cat([index, until[..., None]], -1)


def cases():
    doc = packed([7, 1, 20, 9], 40)
    seen = with_until(doc, [(1, 5), (10, 18), (18, 19), (30, 37)])
    return [
        dict(name="full"),
        dict(name="causal", causal=1, b=2),
        dict(name="window", causal=1, window_left=5),
        dict(name="window_both", window_left=3, window_right=6),
        dict(name="document", causal=1, b=2, q_index=doc, k_index=doc),
        dict(name="document_full", q_index=doc, k_index=doc),
        dict(name="zigzag", causal=1, q_index=zigzag(doc, 2), k_index=zigzag(doc, 2)),
        dict(name="gqa", causal=1, hk=1),
        dict(name="scale", causal=1, scale=0.5),
        dict(name="bias", causal=1, with_bias=True, tq=20, tk=20),
        dict(name="softcap", causal=1, softcap=2.0),
        dict(name="dlse", causal=1, with_dlse=True),
        dict(name="decode", causal=1, tq=3, tk=33, q_start=30),
        dict(name="blind_rows", causal=1, tq=12, tk=9, q_start=-4, with_dlse=True),
        dict(name="head_sizes", dv=5, tq=17, tk=33),
        dict(name="until", causal=1, b=2, q_index=seen, k_index=seen),
        dict(name="until_window", causal=1, window_left=3, window_right=5, hk=1, q_index=seen,
             k_index=doc, with_dlse=True),
        dict(name="until_zigzag", causal=1, window_left=4, q_index=zigzag(seen, 2),
             k_index=zigzag(seen, 2)),
    ]


def lua(value):
    return '"%s"' % value if isinstance(value, str) else repr(value)


def write(folder, case, tensors):
    file = case["name"] + ".bin"
    fields = ['name = "%s"' % case["name"], 'file = "%s"' % file]
    for key in ("causal", "window_left", "window_right", "q_start", "scale", "softcap"):
        if key in case:
            fields.append("%s = %s" % (key, lua(case[key])))
    data = b""
    for key, t in tensors.items():
        values = t.detach().flatten().tolist()
        shape = ", ".join(str(n) for n in t.shape)
        fields.append("%s = { shape = { %s }, at = %d }" % (key.rstrip("_"), shape, len(data)))
        kind = "i" if t.dtype == torch.int32 else "f"
        data += struct.pack("<%d%s" % (len(values), kind), *values)
    with open(os.path.join(folder, file), "wb") as f:
        f.write(data)
    return "   {\n" + "".join("      %s,\n" % f for f in fields) + "   },\n"


def main(folder):
    text = "-- Golden values of attention. Written by spec/golden/attention.py; see there.\n"
    text += "return {\n"
    for i, case in enumerate(cases()):
        case["seed"] = 100 + i
        text += write(folder, case, compute(case))
    with open(os.path.join(folder, "index.lua"), "w") as f:
        f.write(text + "}\n")


if __name__ == "__main__":
    main(sys.argv[1])
