"""Golden values of FP8 from PyTorch's float8_e4m3fn and float8_e5m2.

    python spec/golden/fp8.py spec/golden/fp8

writes index.lua, a table { { name =, file =, x = { shape = { ... }, at = 0 }, ... } }, and one file a
case with its tensors, row-major, as little-endian f32, each from byte `at` on.

round cases: x holds every number of the format, the middle between each two neighbours and the f32
numbers beside that middle, of both signs; y is what PyTorch's cast makes of them. linear cases: y =
x w' + bias of operands scaled by largest / amax and cast, and the gradients of its inputs for dy,
with dy cast to e5m2; products are f64 of the cast numbers.

block cases: the same with blocks of 128 as Transformer Engine's Float8BlockScaling has them, all
e4m3: x and dy in blocks of 1 x 128 along the dim that a product sums over, w of 128 x 128; scales
are powers of two, or any f32 (block_f32).
"""

import os
import struct
import sys

import torch

FORMS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def write(folder, name, tensors):
    at, parts, blob = 0, [], b""
    for key, t in tensors.items():
        flat = t.detach().float().contiguous().view(-1).tolist()
        parts.append("%s = { shape = { %s }, at = %d }" % (key, ", ".join(map(str, t.shape)), at))
        raw = struct.pack("<%df" % len(flat), *flat)
        blob += raw
        at += len(raw)
    with open(os.path.join(folder, name + ".bin"), "wb") as f:
        f.write(blob)
    return '  { name = "%s", file = "%s.bin",\n    %s },\n' % (name, name, ",\n    ".join(parts))


def round_case(folder, name):
    form = FORMS[name]
    codes = torch.arange(128, dtype=torch.uint8).view(form).float()
    codes = codes[codes.isfinite()]
    middle = (codes[1:] + codes[:-1]) / 2
    up, down = torch.tensor(torch.inf), torch.tensor(0.0)
    x = torch.cat([codes, middle, middle.nextafter(up), middle.nextafter(down)])
    x = torch.cat([x, -x])
    return write(folder, "round_" + name, {"x": x, "y": x.to(form).float()})


def cast(t, name):
    form = FORMS[name]
    top, amax = torch.finfo(form).max, t.float().abs().max()
    scale = torch.tensor(1.0) if amax == 0 else torch.tensor(top) / amax
    return (t.float() * scale).clamp(-top, top).to(form).double(), scale.double()


def product(a, b):
    (a, a_scale), (b, b_scale) = a, b
    return a @ b / a_scale / b_scale


def linear_case(folder, name, m, k, n, x_size, w_size, dy_size):
    x, w = torch.randn(m, k) * x_size, torch.randn(n, k) * w_size
    bias, dy = torch.randn(n), torch.randn(m, n) * dy_size
    qx, qw, qdy = cast(x, "e4m3"), cast(w, "e4m3"), cast(dy, "e5m2")
    turned = lambda q: (q[0].T, q[1])
    return write(folder, name, {
        "x": x, "w": w, "bias": bias, "dy": dy, "y": product(qx, turned(qw)) + bias.double(),
        "dx": product(qdy, qw), "dw": product(turned(qdy), qx), "dbias": dy.double().sum(0)})


def block_scale(amax, f32_scale):
    scale = torch.where(amax == 0, torch.ones_like(amax), 448.0 / amax)
    return scale if f32_scale else 2.0 ** torch.floor(torch.log2(scale.double())).float()


def block_cast(t, height, f32_scale):
    """t in e4m3 by blocks of [height, 128], as f64."""
    rows, cols = t.shape
    out = torch.empty(rows, cols, dtype=torch.float64)
    for r in range(0, rows, height):
        for c in range(0, cols, 128):
            part = t[r:r + height, c:c + 128].float()
            scale = block_scale(part.abs().max(), f32_scale)
            codes = (part * scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            out[r:r + height, c:c + 128] = codes.double() / scale.double()
    return out


def block_case(folder, name, m, k, n, x_size, w_size, dy_size, f32_scale=False):
    x, w = torch.randn(m, k) * x_size, torch.randn(n, k) * w_size
    x *= torch.randn(m, k).exp() ** 2
    bias, dy = torch.randn(n), torch.randn(m, n) * dy_size
    cast_rows = lambda t: block_cast(t, 1, f32_scale)
    qw = block_cast(w, 128, f32_scale)
    return write(folder, name, {
        "x": x, "w": w, "bias": bias, "dy": dy, "y": cast_rows(x) @ qw.T + bias.double(),
        "dx": cast_rows(dy) @ qw, "dw": cast_rows(dy.T) @ cast_rows(x.T).T,
        "dbias": dy.double().sum(0)})


def main(folder):
    torch.manual_seed(11)
    os.makedirs(folder, exist_ok=True)
    rows = [round_case(folder, name) for name in FORMS] + [
        linear_case(folder, "plain", 5, 16, 32, 1, 1, 1),
        linear_case(folder, "odd", 7, 19, 11, 30, 0.02, 1e-6),
        linear_case(folder, "zero", 3, 4, 5, 0, 1, 1),
        linear_case(folder, "long", 20, 130, 9, 1e-4, 1e5, 1e-3),
        block_case(folder, "block_deep", 5, 300, 6, 3, 0.02, 1e-5),
        block_case(folder, "block_wide", 3, 7, 270, 1, 1, 1),
        block_case(folder, "block_many", 261, 5, 4, 1e-3, 30, 1e-6),
        block_case(folder, "block_f32", 131, 40, 3, 1, 1, 1, True),
    ]
    with open(os.path.join(folder, "index.lua"), "w") as f:
        f.write("-- Made by spec/golden/fp8.py.\nreturn {\n" + "".join(rows) + "}\n")


main(sys.argv[1])
