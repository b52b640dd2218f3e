"""A small Qwen3-VL on the chats of vl_chat.py, and what PyTorch and transformers make of them.

    python spec/golden/qwen3_vl_chat.py      # from the root of the tree; needs torch, transformers, PIL

Written to spec/golden/vl_chat: qwen3_vl.json, a configuration, and qwen3_vl.lua, losses and turns as
in numbers.lua. Ids and grids are those of numbers.lua.
"""
import json

import torch
import transformers as T

from common import doubles_only, wrapped
from vl_chat import CHATS, HERE, LR, STEPS, TEMPLATE, document, tokenizer, write_learned


def config(tok):
    at = tok.convert_tokens_to_ids
    return T.Qwen3VLConfig(
        text_config=dict(
            vocab_size=len(tok) + 1, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
            num_attention_heads=2, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
            bos_token_id=at("<|endoftext|>"), eos_token_id=at("<|im_end|>"),
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_interleaved=True,
                                 mrope_section=[4, 2, 2])),
        vision_config=dict(depth=3, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=4,
                           out_hidden_size=32, num_position_embeddings=36,
                           deepstack_visual_indexes=[0, 1]),
        image_token_id=at("<|image_pad|>"), video_token_id=at("<|video_pad|>"),
        vision_start_token_id=at("<|vision_start|>"), vision_end_token_id=at("<|vision_end|>"))


def main():
    doubles_only()
    torch.float = torch.float64
    tok = tokenizer()
    image = T.Qwen2VLImageProcessor(patch_size=4, merge_size=2, temporal_patch_size=2,
                                    min_pixels=256, max_pixels=640)
    processor = T.Qwen3VLProcessor(image, tok, T.Qwen3VLVideoProcessor(patch_size=4),
                                   chat_template=TEMPLATE)
    c = config(tok)
    c._attn_implementation = "eager"
    c.architectures = ["Qwen3VLForConditionalGeneration"]
    (HERE / "qwen3_vl.json").write_text(wrapped(json.dumps(json.loads(c.to_json_string()))) + "\n")
    documents = [document(processor, chat) for chat in CHATS]
    for whole, _, _ in documents:
        if "pixel_values" in whole:
            whole["pixel_values"] = whole["pixel_values"].double()
    with open(HERE / "qwen3_vl.lua", "w") as out:
        out.write(f"-- Written by spec/golden/qwen3_vl_chat.py: transformers {T.__version__}.\n\n"
                  f"return {{\n   steps = {STEPS}, lr = {LR},\n")
        write_learned(out, T.Qwen3VLForConditionalGeneration, c, processor, documents)


if __name__ == "__main__":
    main()
