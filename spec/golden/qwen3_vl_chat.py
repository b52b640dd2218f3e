"""A small Qwen3-VL and a small Qwen3.5 on the chats of vl_chat.py, and what PyTorch and transformers
make of them.

    python spec/golden/qwen3_vl_chat.py      # from the root of the tree; needs torch, transformers, PIL

Written to spec/golden/vl_chat: qwen3_vl.json, a configuration, and qwen3_vl.lua, losses and turns as
in numbers.lua; and qwen3_5.json and qwen3_5.lua. Ids and grids are those of numbers.lua.
"""
import json

import torch
import transformers as T

from common import doubles_only, wrapped
from vl_chat import CHATS, HERE, LR, STEPS, TEMPLATE, document, tokenizer, write_learned


def config(kind, tok, rope, text, vision):
    """A configuration of the class `kind`. rope, text, vision: fields of its own."""
    at = tok.convert_tokens_to_ids
    return kind(
        text_config=dict(
            vocab_size=len(tok) + 1, hidden_size=32, intermediate_size=48, num_attention_heads=2,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
            bos_token_id=at("<|endoftext|>"), eos_token_id=at("<|im_end|>"),
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_interleaved=True,
                                 **rope), **text),
        vision_config=dict(hidden_size=16, intermediate_size=24, num_heads=2, patch_size=4,
                           out_hidden_size=32, num_position_embeddings=36, **vision),
        image_token_id=at("<|image_pad|>"), video_token_id=at("<|video_pad|>"),
        vision_start_token_id=at("<|vision_start|>"), vision_end_token_id=at("<|vision_end|>"))


def write(name, kind, c, processor, documents):
    """Writes the two files of a model of a class."""
    c._attn_implementation = "eager"
    c.architectures = [kind.__name__]
    (HERE / f"{name}.json").write_text(wrapped(json.dumps(json.loads(c.to_json_string()))) + "\n")
    with open(HERE / f"{name}.lua", "w") as out:
        out.write(f"-- Written by spec/golden/qwen3_vl_chat.py: transformers {T.__version__}.\n\n"
                  f"return {{\n   steps = {STEPS}, lr = {LR},\n")
        write_learned(out, kind, c, processor, documents)


def main():
    doubles_only()
    torch.float = torch.float64
    tok = tokenizer()
    image = T.Qwen2VLImageProcessor(patch_size=4, merge_size=2, temporal_patch_size=2,
                                    min_pixels=256, max_pixels=640)
    processor = T.Qwen3VLProcessor(image, tok, T.Qwen3VLVideoProcessor(patch_size=4),
                                   chat_template=TEMPLATE)
    documents = [document(processor, chat) for chat in CHATS]
    for whole, _, _ in documents:
        if "pixel_values" in whole:
            whole["pixel_values"] = whole["pixel_values"].double()
    write("qwen3_vl", T.Qwen3VLForConditionalGeneration, config(
        T.Qwen3VLConfig, tok, dict(mrope_section=[4, 2, 2]), dict(num_hidden_layers=3),
        dict(depth=3, deepstack_visual_indexes=[0, 1])), processor, documents)
    write("qwen3_5", T.Qwen3_5ForConditionalGeneration, config(
        T.Qwen3_5Config, tok, dict(mrope_section=[2, 1, 1], partial_rotary_factor=0.5),
        dict(num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
             linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
             linear_value_head_dim=8), dict(depth=2)), processor, documents)


if __name__ == "__main__":
    main()
