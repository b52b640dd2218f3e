"""Rotary frequencies of Llama 3.1 (the rule `llama3` of transformers' modeling_rope_utils), in doubles.

    python spec/golden/rope.py

Prints, for head size 128, theta 500000, factor 8, low 1, high 4, context 8192, the frequencies whose
wave length lies between the two limits, with their number from 0: the values in spec/lua/nn_spec.lua.
"""
import math

DIM, THETA, FACTOR, LOW, HIGH, CONTEXT = 128, 500000.0, 8.0, 1.0, 4.0, 8192
for i in range(DIM // 2):
    inv_freq = THETA ** (-2 * i / DIM)
    wavelen = 2 * math.pi / inv_freq
    if CONTEXT / HIGH <= wavelen <= CONTEXT / LOW:
        smooth = (CONTEXT / wavelen - LOW) / (HIGH - LOW)
        print(i, repr((1 - smooth) * inv_freq / FACTOR + smooth * inv_freq))
