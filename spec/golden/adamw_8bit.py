"""Weights of AdamW8bit of bitsandbytes (its steps on the CPU), and of AdamW in double.

    python spec/golden/adamw_8bit.py > spec/golden/adamw_8bit.lua

The gradients are numbers of many sizes, so that moments have many sizes, too. The spec makes the
same numbers.
"""
import bitsandbytes
import numpy as np
import torch

from common import Numbers, show

COUNT, STEPS, SHOWN = 4096, 30, 64
LR, BETA1, BETA2, EPS, DECAY = 0.01, 0.9, 0.95, 1e-8, 0.1


def gradients():
    numbers = Numbers(5)
    begin, size = numbers.take(COUNT), np.abs(numbers.take(COUNT))
    return begin, [(size * numbers.take(COUNT)).astype(np.float32) for _ in range(STEPS)]


def in_double(w, grads):
    m, v = np.zeros(COUNT), np.zeros(COUNT)
    for step, g in enumerate(grads, 1):
        g = g.astype(np.float64)
        m, v = m + (1 - BETA1) * (g - m), v + (1 - BETA2) * (g * g - v)
        root = 1 / np.sqrt(1 - BETA2 ** step)
        w = (w - LR * DECAY * w) - LR / (1 - BETA1 ** step) * m / (np.sqrt(v) * root + EPS)
    return w


def of_bitsandbytes(w, grads):
    p = torch.nn.Parameter(torch.tensor(w, dtype=torch.float32))
    optim = bitsandbytes.optim.AdamW8bit([p], lr=LR, betas=(BETA1, BETA2), eps=EPS,
                                         weight_decay=DECAY, min_8bit_size=0)
    for g in grads:
        p.grad = torch.tensor(g)
        optim.step()
    assert optim.state[p]["state1"].dtype == torch.uint8
    return p.detach().numpy().astype(np.float64)


def main():
    begin, grads = gradients()
    exact, coded = in_double(begin, grads), of_bitsandbytes(begin, grads)
    off = np.abs(coded - exact)
    print(f"-- Written by spec/golden/adamw_8bit.py, with bitsandbytes {bitsandbytes.__version__}.")
    print(f"return {{\n   mean_off = {off.mean():.9g}, most_off = {off.max():.9g},")
    show("exact", exact[::SHOWN], lambda f: f"{f:.9g}")
    show("coded", coded[::SHOWN], lambda f: f"{f:.9g}")
    print("}")


main()
