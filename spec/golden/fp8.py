"""Golden values of FP8 from PyTorch's float8_e4m3fn and float8_e5m2.

    python spec/golden/fp8.py spec/golden/fp8

writes index.lua, a table { { name =, file =, x = { shape = { ... }, at = 0 }, ... } }, and one file a
case with its tensors, row-major, as little-endian f32, each from byte `at` on.

round cases: x holds every number of the format, the middle between each two neighbours and the f32
numbers beside that middle, of both signs; y is what PyTorch's cast makes of them. linear cases: y =
x w' + bias of operands scaled by largest / amax and cast, and the gradients of its inputs for dy,
with dy cast to e5m2; products are f64 of the cast numbers.
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


def main(folder):
    torch.manual_seed(11)
    os.makedirs(folder, exist_ok=True)
    rows = [round_case(folder, name) for name in FORMS] + [
        linear_case(folder, "plain", 5, 16, 32, 1, 1, 1),
        linear_case(folder, "odd", 7, 19, 11, 30, 0.02, 1e-6),
        linear_case(folder, "zero", 3, 4, 5, 0, 1, 1),
        linear_case(folder, "long", 20, 130, 9, 1e-4, 1e5, 1e-3),
    ]
    with open(os.path.join(folder, "index.lua"), "w") as f:
        f.write("-- Made by spec/golden/fp8.py.\nreturn {\n" + "".join(rows) + "}\n")


main(sys.argv[1])
