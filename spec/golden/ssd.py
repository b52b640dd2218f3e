"""Golden values of the SSD scan and of a Mamba-2 layer from PyTorch, in f64.

    python spec/golden/ssd.py spec/golden/ssd

writes index.lua, a table { { name =, chunk =, file =, x = { shape = { ... }, at = 0 }, ... } }, and one
file a case with its tensors, row-major, as little-endian f32 (i32 for sequence), each from byte
`at` on.

scan cases: the chunked algorithm of the paper (arXiv 2405.21060, section 6: blocks on the diagonal,
states of chunks, their recurrence, blocks below it), with segment sums by masked cumulative sums;
for packed streams each sequence runs by itself. Held against the plain recurrence to 1e-10 before
anything is written. Inputs are rounded to f32 first. layer cases: projection, convolution by conv1d,
scan, gated norm, projection, with the layer's parameters and their gradients.
"""

import os
import struct
import sys

import torch
import torch.nn.functional as F


def segsum(a):
    """[..., Q] -> [..., Q, Q]: sums of a over (s, t], -inf above the diagonal."""
    q = a.shape[-1]
    wide = a[..., None].expand(*a.shape, q)
    wide = wide.masked_fill(~torch.tril(torch.ones(q, q, dtype=torch.bool), -1), 0)
    sums = wide.cumsum(-2)
    return sums.masked_fill(~torch.tril(torch.ones(q, q, dtype=torch.bool)), -torch.inf)


def chunked(x, a, B, C, chunk, state):
    """x [b, t, h, p] with the step in it, a [b, t, h], B and C [b, t, h, n]; t a multiple of chunk."""
    cut = lambda v: v.unflatten(1, (-1, chunk))
    x, B, C = cut(x), cut(B), cut(C)
    a = cut(a).permute(0, 3, 1, 2)
    sums = a.cumsum(-1)
    y = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", C, B, segsum(a).exp(), x)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", B, (sums[..., -1:] - sums).exp(), x)
    states = torch.cat([state[:, None], states], 1)
    between = segsum(F.pad(sums[..., -1], (1, 0))).exp()
    states = torch.einsum("bhzc,bchpn->bzhpn", between, states)
    y = y + torch.einsum("bclhn,bchpn,bhcl->bclhp", C, states[:, :-1], sums.exp())
    return y.flatten(1, 2), states[:, -1]


def recurrence(x, a, B, C, state):
    y = []
    for t in range(x.shape[1]):
        state = a[:, t].exp()[..., None, None] * state + x[:, t, ..., None] * B[:, t, :, None]
        y.append((state * C[:, t, :, None]).sum(-1))
    return torch.stack(y, 1), state


def one_sequence(x, a, B, C, chunk, state):
    t = x.shape[1]
    more = -t % chunk
    pad = lambda v: F.pad(v, (0, 0) * (v.ndim - 2) + (0, more))
    y, last = chunked(pad(x), pad(a), pad(B), pad(C), chunk, state)
    y = y[:, :t]
    want, end = recurrence(x, a, B, C, state)
    assert (y - want).abs().max() < 1e-10 and (last - end).abs().max() < 1e-10
    return y, last


def scan(x, dt, A, B, C, D, bias, state, cu, chunk, limit):
    step = F.softplus(dt + bias).clamp(*limit)
    r = x.shape[2] // B.shape[2]
    B, C = B.repeat_interleave(r, 2), C.repeat_interleave(r, 2)
    ys = []
    for lo, hi in zip(cu, cu[1:]):
        part = slice(lo, hi)
        y, last = one_sequence(x[:, part] * step[:, part, :, None], step[:, part] * A, B[:, part],
                               C[:, part], chunk, state if lo == 0 else torch.zeros_like(state))
        ys.append(y)
    return torch.cat(ys, 1) + x * (D[:, None] if D.ndim == 1 else D), last


def write(folder, name, fields, tensors):
    at, parts, blob = 0, [], b""
    for key, t in tensors.items():
        code = "i" if t.dtype == torch.int32 else "f"
        flat = t.detach().contiguous().view(-1).tolist()
        parts.append("%s = { shape = { %s }, at = %d }" % (key, ", ".join(map(str, t.shape)), at))
        raw = struct.pack("<%d%s" % (len(flat), code), *flat)
        blob += raw
        at += len(raw)
    with open(os.path.join(folder, name + ".bin"), "wb") as f:
        f.write(blob)
    scalars = ["%s = %s" % kv for kv in fields.items()]
    return '  { name = "%s", file = "%s.bin",\n    %s,\n    %s },\n' % (
        name, name, ", ".join(scalars), ",\n    ".join(parts))


def rand(*shape, scale=1.0):
    return (torch.randn(*shape) * scale).float().double()


def scan_case(folder, name, b, t, h, p, g, n, chunk, cu=None, wide_D=False, limit=(0, 100)):
    i = {"x": rand(b, t, h, p), "dt": rand(b, t, h), "A": -rand(h).abs() - 0.1,
         "B": rand(b, t, g, n), "C": rand(b, t, g, n), "D": rand(h, p) if wide_D else rand(h),
         "bias": rand(h), "state": rand(b, h, p, n)}
    i["A"] = i["A"].float().double()
    for v in i.values():
        v.requires_grad_()
    y, last = scan(*i.values(), cu or [0, t], chunk, limit)
    dy, dlast = rand(*y.shape), rand(*last.shape)
    torch.autograd.backward([y, last], [dy, dlast])
    out = dict(i, y=y, last=last, dy=dy, dlast=dlast, **{"d" + k: v.grad for k, v in i.items()})
    if cu:
        out["sequence"] = torch.tensor([sum(c <= k for c in cu[1:]) for k in range(t)],
                                       dtype=torch.int32)[None]
    return write(folder, name, {"kind": '"scan"', "chunk": chunk, "least": limit[0],
                                "most": limit[1]}, out)


def layer_case(folder, name, b, t, dim, h, p, g, n, gate_last):
    inner, conv = h * p, h * p + 2 * g * n
    w = {"in_proj.weight": rand(inner + conv + h, dim, scale=0.3), "conv1d.weight": rand(conv, 1, 4),
         "conv1d.bias": rand(conv, scale=0.3), "dt_bias": rand(h), "A_log": rand(h, scale=0.5),
         "D": rand(h), "norm.weight": rand(inner), "out_proj.weight": rand(dim, inner, scale=0.3)}
    x = rand(b, t, dim)
    for v in [x, *w.values()]:
        v.requires_grad_()
    z, mid, dt = (x @ w["in_proj.weight"].T).split([inner, conv, h], -1)
    mid = F.conv1d(F.pad(mid.mT, (3, 0)), w["conv1d.weight"], w["conv1d.bias"], groups=conv).mT
    v, B, C = F.silu(mid).split([inner, g * n, g * n], -1)
    y, _ = scan(v.unflatten(-1, (h, p)), dt, -w["A_log"].exp(), B.unflatten(-1, (g, n)),
                C.unflatten(-1, (g, n)), w["D"], w["dt_bias"], torch.zeros(b, h, p, n).double(),
                [0, t], 4, (0, 100))
    y = y.flatten(2)
    u = (y if gate_last else y * F.silu(z)).unflatten(-1, (g, -1))
    u = (u * (u.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).flatten(-2) * w["norm.weight"]
    out = (u * F.silu(z) if gate_last else u) @ w["out_proj.weight"].T
    dout = rand(*out.shape)
    out.backward(dout)
    named = {"x": x, "out": out, "dout": dout, "dx": x.grad}
    for key, v in w.items():
        named["['%s']" % key] = v
        named["['d %s']" % key] = v.grad
    sizes = {"kind": '"layer"', "dim": dim, "heads": h, "head_dim": p, "groups": g, "state": n,
             "gate_last": str(gate_last).lower()}
    return write(folder, name, sizes, named)


def main(folder):
    torch.manual_seed(7)
    os.makedirs(folder, exist_ok=True)
    rows = [
        scan_case(folder, "plain", 2, 12, 4, 3, 2, 5, 4),
        scan_case(folder, "odd", 1, 13, 3, 5, 1, 7, 4, wide_D=True, limit=(0.1, 1.5)),
        scan_case(folder, "packed", 1, 14, 2, 4, 2, 3, 4, cu=[0, 1, 4, 9, 14]),
        scan_case(folder, "single", 2, 1, 2, 3, 1, 4, 4),
        scan_case(folder, "long", 1, 75, 2, 4, 1, 3, 16),
        layer_case(folder, "layer", 2, 9, 6, 4, 3, 2, 5, False),
        layer_case(folder, "layer_gate_last", 1, 7, 5, 2, 4, 1, 3, True),
    ]
    with open(os.path.join(folder, "index.lua"), "w") as f:
        f.write("-- Made by spec/golden/ssd.py.\nreturn {\n" + "".join(rows) + "}\n")


main(sys.argv[1])
