"""Codes, scales and weights of AdamW with 8-bit moments, from numpy.

    python spec/golden/update_8bit.py > spec/golden/update_8bit.lua

The maps are built as bitsandbytes builds its dynamic maps (seven exponents, the fraction's bits
filled from the left), from their definition, and every code is found by looking at all of them. A
block's scale is its number of the largest magnitude, with its sign; unsigned numbers above 0 do not
become 0. Moments are computed in double and rounded to f32 before they are coded.
"""
import numpy as np

from common import Numbers, show

BLOCK, COUNT, STEPS = 256, 600, 4
LR, BETA1, BETA2, EPS, DECAY = 0.05, 0.9, 0.95, 1e-8, 0.1


def dynamic_map(signed):
    values = []
    for power in range(7):
        ends = np.linspace(0.1, 1, 2 ** (power + (0 if signed else 1)) + 1)
        means = (ends[:-1] + ends[1:]) / 2 * 10.0 ** (power - 6)
        values += list(means) + ([-x for x in means] if signed else [])
    return np.array(sorted(values + [0.0, 1.0])).astype(np.float32)


def nearest(values, share):
    gap = np.abs(values.astype(np.float64) - np.float64(share))
    found = np.flatnonzero(gap == gap.min())
    return min(found, key=lambda c: abs(values[c]))


def code(x, signed):
    values = dynamic_map(signed)
    codes, scales = [], []
    for at in range(0, len(x), BLOCK):
        block = x[at:at + BLOCK].astype(np.float32)
        high, low = block.max(), block.min() if signed else np.float32(0)
        scale = max(high, np.float32(0)) if max(high, 0) >= -min(low, 0) else low
        scales.append(scale)
        for share in block / scale:
            c = nearest(values, share)
            codes.append(c if signed or share <= 0 else max(c, 1))
    return np.array(codes), np.array(scales)


def read(codes, scales, signed):
    return dynamic_map(signed)[codes] * np.repeat(scales, BLOCK)[:len(codes)]


def steps(numbers):
    w = numbers.take(COUNT)
    m, v = np.zeros(COUNT), np.zeros(COUNT)
    for step in range(1, STEPS + 1):
        g = numbers.take(COUNT)
        m = m + (1 - BETA1) * (g - m)
        v = v + (1 - BETA2) * (g * g - v)
        root = 1 / np.sqrt(1 - BETA2 ** step)
        w = (w - LR * DECAY * w) - LR / (1 - BETA1 ** step) * m / (np.sqrt(v) * root + EPS)
        w = w.astype(np.float32).astype(np.float64)
        coded_m, coded_v = code(m, True), code(v, False)
        m = read(*coded_m, True).astype(np.float64)
        v = read(*coded_v, False).astype(np.float64)
    return w, coded_m, coded_v


def main():
    print("-- Written by spec/golden/update_8bit.py.\nreturn {")
    for signed in (True, False):
        x = Numbers(7).take(COUNT)
        codes, scales = code(x if signed else np.abs(x), signed)
        name = "signed" if signed else "unsigned"
        show(name + "_map", dynamic_map(signed)[::17], lambda f: f"{f:.9g}")
        show(name + "_codes", codes, str)
        show(name + "_scales", scales, lambda f: f"{f:.9g}")
    w, (m, m_scale), (v, v_scale) = steps(Numbers(99))
    show("weights", w[::7], lambda f: f"{f:.9g}")
    show("m", m, str)
    show("v", v, str)
    show("m_scale", m_scale, lambda f: f"{f:.9g}")
    show("v_scale", v_scale, lambda f: f"{f:.9g}")
    print("}")


main()
