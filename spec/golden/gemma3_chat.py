"""A small Gemma 3 with a tokenizer and a template as published ones have, on chats with the images of
vl_chat.py: the ids that the processor of transformers makes, losses and greedy answers.

    python spec/golden/gemma3_chat.py        # from the root of the tree; needs torch, transformers, PIL

Written to spec/golden/gemma3_chat: config.json, the files of the processor, and numbers.lua. Weights
are those of gemma3_vl.py.
"""
import json
import pathlib
import textwrap

import torch
import transformers as T
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor

from common import doubles_only, wrapped
from gemma3_vl import TEXT, VISION, fill

HERE = pathlib.Path("spec/golden/gemma3_chat")
IMAGES = pathlib.Path("spec/golden/vl_chat")
SPECIAL = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>",
           "<end_of_image>", "<image_soft_token>"]
SIDE, NEW = 8, 6
TEMPLATE = """\
{{- bos_token -}}
{%- set lead = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' -%}
{%- for message in (messages[1:] if lead else messages) -%}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' -}}
{{- lead if loop.first else '' -}}
{%- if message.content is string -%}
{{- message.content | trim -}}
{%- else -%}
{%- for part in message.content -%}
{{- '<start_of_image>' if part.type == 'image' else part.text | trim -}}
{%- endfor -%}
{%- endif -%}
{{- '<end_of_turn>\\n' -}}
{%- endfor -%}
{{- '<start_of_turn>model\\n' if add_generation_prompt else '' -}}
"""


def image(name):
    return {"type": "image", "image": name}


def text(words):
    return {"type": "text", "text": words}


CHATS = [
    [{"role": "user", "content": [image("a.png"), text("What is this?")]},
     {"role": "assistant", "content": "A ramp."}],
    [{"role": "system", "content": "Be brief."},
     {"role": "user", "content": [text("Here:"), image("b.png"), image("c.png"), text("Compare.")]},
     {"role": "assistant", "content": "They differ."},
     {"role": "user", "content": [text("And this? "), image("a.png")]},
     {"role": "assistant", "content": "So does it.\n\n\nYes."}],
    [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}],
]


def tokenizer():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    words = ["user\n", "model\n", "user\n\n\n", "\n\nWhat is this?", "\n\n\n\n", "\n\n", "Compare.", "ramp"]
    t.train_from_iterator(words * 9, trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return T.PreTrainedTokenizerFast(
        tokenizer_object=t, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>",
        extra_special_tokens=dict(boi_token="<start_of_image>", eoi_token="<end_of_image>",
                                  image_token="<image_soft_token>"))


def with_pixels(chat):
    return [{**m, "content": [
        {**p, "image": Image.open(IMAGES / p["image"])} if p["type"] == "image" else p
        for p in m["content"]] if isinstance(m["content"], list) else m["content"]} for m in chat]


def ids_of(processor, chat, **more):
    return processor.apply_chat_template(with_pixels(chat), tokenize=True, return_dict=True,
                                         return_tensors="pt", **more)


def main():
    doubles_only()
    torch.float = torch.float64
    T.logging.set_verbosity_error()
    tok = tokenizer()
    processor = T.Gemma3Processor(
        Gemma3ImageProcessor(size=dict(height=SIDE, width=SIDE)), tok, chat_template=TEMPLATE,
        image_seq_length=4)
    HERE.mkdir(exist_ok=True)
    processor.save_pretrained(HERE)
    at = tok.convert_tokens_to_ids
    config = T.Gemma3Config(
        text_config={**TEXT, "vocab_size": len(tok), "max_position_embeddings": 256,
                     "bos_token_id": 2, "eos_token_id": 1, "sliding_window": 6},
        vision_config={**VISION, "image_size": SIDE}, mm_tokens_per_image=4,
        image_token_index=at("<image_soft_token>"), boi_token_index=at("<start_of_image>"),
        eoi_token_index=at("<end_of_image>"), architectures=["Gemma3ForConditionalGeneration"])
    config._attn_implementation = "eager"
    (HERE / "config.json").write_text(wrapped(json.dumps(json.loads(config.to_json_string()))) + "\n")
    model = T.Gemma3ForConditionalGeneration(config).double().eval()
    fill(model)
    lines = "\n".join(json.dumps({"messages": chat}) for chat in CHATS) + "\n"
    (HERE / "chats.jsonl").write_text(lines)
    with open(HERE / "numbers.lua", "w") as out:
        out.write(f"-- Written by spec/golden/gemma3_chat.py: transformers {T.__version__}.\n\nreturn {{\n")
        for chat in CHATS:
            whole, asked = ids_of(processor, chat), ids_of(processor, chat[:-1],
                                                           add_generation_prompt=True)
            for batch in (whole, asked):
                if "pixel_values" in batch:
                    batch["pixel_values"] = batch["pixel_values"].double()
            ids = whole["input_ids"][0]
            logits = model(**whole).logits[0].detach()
            # the labels of the last answer
            first = len(asked["input_ids"][0])
            loss = torch.nn.functional.cross_entropy(logits[first - 1:-1], ids[first:])
            said = model.generate(**asked, max_new_tokens=NEW, do_sample=False, eos_token_id=None,
                                  pad_token_id=0)[0, first:]

            def row(t):
                return "{ " + textwrap.fill(", ".join(map(str, t.tolist())), 80) + " }"

            out.write(f"   {{\n      loss = {float(loss)!r}, first = {first}, answer = {row(said)},\n"
                      f"      ids = {row(ids)},\n   }},\n")
        out.write("}\n")


if __name__ == "__main__":
    main()
