"""Codes, scales and numbers of NF4 with double quantisation, from bitsandbytes.

    python spec/golden/nf4.py > spec/golden/nf4.lua

Needs torch and bitsandbytes (written with 0.50.2 on the CPU). The weight has more than 256 blocks,
the last of 37 numbers, and every 97th number is large.
"""
import torch
import bitsandbytes.functional as F

from common import show

COUNT, STEP, EVERY = 64 * 260 + 37, 61, 103


def numbers(n):
    """Numbers that f32 holds exactly; the spec makes the same."""
    state, out = 7, []
    for i in range(n):
        state = (state * 16807 + 11) % 2147483647
        share = state // 2048 / 2 ** 19 - 1
        out.append(share * (4 if i % 97 == 0 else 1) / 8)
    return torch.tensor(out, dtype=torch.float32)


def main():
    x = numbers(COUNT)
    codes, state = F.quantize_4bit(x, blocksize=64, compress_statistics=True, quant_type="nf4")
    y = F.dequantize_4bit(codes, state)
    print("-- Written by spec/golden/nf4.py.\nreturn {")
    print(f"   count = {COUNT}, step = {STEP}, every = {EVERY},")
    show("pairs", codes.flatten()[::STEP].tolist(), str)
    show("blocks", state.absmax.tolist(), str)
    show("scale", [state.offset.item()] + state.state2.absmax.tolist(), lambda f: f"{f:.9g}")
    show("numbers", y[::EVERY].tolist(), lambda f: f"{f:.9g}")
    print("}")


main()
