"""Configurations of Qwen3.5 and Qwen3.5-MoE with a vision tower that the `transformers` package
writes, with what their models compute of texts with images and videos.

    python spec/golden/qwen3_5_vl.py         # from the root of the tree; needs torch, transformers

What is written (to qwen3_5_vl.lua and qwen3_5_vl.safetensors) is as in qwen3_vl.py, whose functions
these are.

    python spec/golden/qwen3_5_vl.py DIR

loads folders that tide has written of the same models, DIR/CASE, and prints the largest difference
of logits.
"""
import transformers as T

from qwen2_5_vl import END, V
from qwen3_vl import Family, config_of, main

FULL, LINEAR = "full_attention", "linear_attention"
# half of each head turns
ROPE = dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5,
            mrope_interleaved=True, mrope_section=[2, 1, 1])
TEXT = dict(vocab_size=V, hidden_size=16, intermediate_size=12, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=16, max_position_embeddings=64,
            bos_token_id=1, eos_token_id=2, rope_parameters=ROPE, layer_types=[LINEAR, FULL],
            linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=4,
            linear_value_head_dim=3)
VISION = dict(depth=2, hidden_size=16, intermediate_size=10, num_heads=2, patch_size=2,
              out_hidden_size=16, num_position_embeddings=16)
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6,
           shared_expert_intermediate_size=5)
# as in qwen3_vl.py
CASES = {
    "text": ({}, {}, {}, [[4]], "left"),
    "images": (dict(attention_bias=True, layer_types=[FULL, LINEAR]), {}, {}, [
        [1, [1, 2, 2], 1, [1, 6, 10], 2], [3], [1, [1, 10, 2], 2]], "left"),
    "images_right": (dict(linear_conv_kernel_dim=2), dict(num_position_embeddings=30),
                     dict(tie_word_embeddings=True), [[1, [1, 4, 4], 3], [2, [1, 2, 6], 1]],
                     "right"),
    "video": (dict(num_hidden_layers=4, layer_types=None, full_attention_interval=2), {}, {},
              [[2, (3, 4, 4), 2]], "left"),
    "mixed": (dict(num_key_value_heads=2), {}, {}, [
        [2, (2, 4, 2), 1, [1, 4, 4], 2], [1, [1, 2, 4], 1, (1, 6, 2), 2]], "left"),
    # sections of published models, as far as they reach
    "plain": (dict(rope_parameters=dict(rope_type="default", rope_theta=50.0), head_dim=40),
              dict(spatial_merge_size=1, temporal_patch_size=1, in_channels=1), {}, [
                  [1, [1, 3, 5], 2]], "left"),
    "ahead": ({}, {}, {}, [
        [1, (4, 2, 2), 2], [2, [1, 4, 6], END], [1, [1, 2, 6], 3]], "left"),
    "moe_mixed": ({**MOE, "num_key_value_heads": 2}, {}, {}, [
        [2, (2, 4, 2), 1, [1, 4, 4], 2], [1, [1, 2, 4], 1, (1, 6, 2), 2]], "left"),
}


def qwen3_5(text, vision, outer, is_moe):
    text = {**TEXT, **text}
    if is_moe:
        del text["intermediate_size"]
    return config_of(T.Qwen3_5MoeConfig if is_moe else T.Qwen3_5Config, text,
                     {**VISION, **vision}, outer)


if __name__ == "__main__":
    main(Family("spec/golden/qwen3_5_vl", CASES, VISION, qwen3_5,
                lambda is_moe: T.Qwen3_5MoeForConditionalGeneration if is_moe
                else T.Qwen3_5ForConditionalGeneration, "routed."))
