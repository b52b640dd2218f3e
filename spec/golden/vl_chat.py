"""A small Qwen2.5-VL, chats with images, and what PyTorch and transformers make of them.

    python spec/golden/vl_chat.py        # from the root of the tree; needs torch, transformers, PIL

Written to spec/golden/vl_chat: the files of a model but its weights (those are noise that needs no
generator, see fill), chats.jsonl with images beside it, and numbers.lua. For each chat: the ids of
AutoProcessor with its chat template, which of them are labels (the assistant's messages), the grids
and the positions. Then losses of STEPS steps of AdamW on all chats together, each chat a batch of
its own: of all weights, and of those outside the tower. And the turns of a conversation: the ids
that each adds, and the NEW ids of its greedy answer. All is computed in doubles.
"""
import json
import pathlib

import numpy as np
import torch
import transformers as T
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from common import doubles_only
from qwen2_5_vl import published

HERE = pathlib.Path("spec/golden/vl_chat")
STEPS, LR, NEW = 6, 3e-3, 8
TEMPLATE = (
    "{% set image_count = namespace(value=0) %}{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}<|im_start|>system\nYou are a helpful "
    "assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}"
    "{% if add_vision_id %}Picture {{ image_count.value }}: {% endif %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif content['type'] == 'video' or 'video' in content %}"
    "<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>",
           "<|image_pad|>", "<|video_pad|>"]


def user(*parts):
    return {"role": "user", "content": [
        {"type": "image", "image": p[1:]} if p.startswith("@") else {"type": "text", "text": p}
        for p in parts]}


def says(text):
    return {"role": "assistant", "content": text}


CHATS = [
    [user("@a.png", "What is this?"), says("A grey ramp.")],
    [user("Compare ", "@b.png", " and ", "@c.png", "."), says("They differ."),
     {"role": "user", "content": "How?"}, says("In their colours.")],
    [{"role": "system", "content": "Be brief."}, user("Hello"), says("Hi!")],
    [user("@c.png", "@a.png", "Which is wider?"),
     {"role": "assistant", "content": [{"type": "image", "image": "b.png"},
                                       {"type": "text", "text": "The second."}]}],
]


TURNS = [user("@a.png", "What is this?"), user("Why?"), user("Look: ", "@b.png", "@c.png", "?"),
         user("@a.png", "So?")]


def tokenizer():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    return T.PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|im_end|>",
                                     pad_token="<|endoftext|>", clean_up_tokenization_spaces=False)


def images():
    rng = np.random.default_rng(1)
    for name, (h, w) in dict(a=(17, 40), b=(24, 24), c=(9, 11)).items():
        y, x = np.mgrid[0:h, 0:w]
        base = np.stack([5 * x, 7 * y, 3 * (x + y)], -1) % 256 if name != "a" else \
            np.repeat((6 * x)[..., None], 3, -1) % 256
        pixels = (base + rng.integers(0, 9, base.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(HERE / f"{name}.png", optimize=True)


def config(tok):
    at = tok.convert_tokens_to_ids
    return T.Qwen2_5_VLConfig(
        text_config=dict(
            vocab_size=len(tok) + 1, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512,
            bos_token_id=at("<|endoftext|>"), eos_token_id=at("<|im_end|>"),
            rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                 mrope_section=[2, 3, 3])),
        vision_config=dict(depth=2, hidden_size=16, intermediate_size=24, num_heads=2,
                           patch_size=4, window_size=16, out_hidden_size=32,
                           fullatt_block_indexes=[1]),
        image_token_id=at("<|image_pad|>"), video_token_id=at("<|video_pad|>"),
        vision_start_token_id=at("<|vision_start|>"), vision_end_token_id=at("<|vision_end|>"))


def fill(model):
    """Parameter k in the order of published names: noise of its places."""
    names = {published(n): p for n, p in model.named_parameters()}
    with torch.no_grad():
        for k, name in enumerate(sorted(names)):
            p = names[name]
            x = (torch.arange(p.numel()) * 12.9898 + 78.233 * (k + 1)).sin() * 43758.5453
            u = (2 * (x - x.floor()) - 1).reshape(p.shape)
            p.copy_(u * 0.6 if p.ndim > 1 else u * 0.3 + ("norm" in name or ".ln_" in name))


def document(processor, messages):
    """What the processor makes of a chat, and the labels of the next tokens."""
    messages = [dict(m) for m in messages]
    for m in messages:
        if isinstance(m["content"], list):
            m["content"] = [{**p, "image": str(HERE / p["image"])} if "image" in p else p
                            for p in m["content"]]

    def read(part, **more):
        return processor.apply_chat_template(part, tokenize=True, return_dict=True,
                                             return_tensors="pt", **more)

    whole = read(messages)
    ids = whole["input_ids"][0].tolist()
    counts = [False] * len(ids)
    for i, m in enumerate(messages):
        if m["role"] == "assistant":
            first = read(messages[:i], add_generation_prompt=True)["input_ids"].shape[1]
            last = read(messages[:i + 1])["input_ids"].shape[1]
            counts[first:last] = [True] * (last - first)
    image = [processor.tokenizer.convert_tokens_to_ids(s) for s in SPECIAL[3:6]]
    counts = [c and i not in image for c, i in zip(counts, ids)]
    return whole, ids, counts


def train(model, documents):
    params = [p for p in model.parameters() if p.requires_grad]
    optim = torch.optim.AdamW(params, lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
    losses = []
    count = sum(sum(counts[1:]) for _, _, counts in documents)
    for _ in range(STEPS):
        total = 0.0
        for whole, ids, counts in documents:
            labels = torch.tensor([i if c else -100 for i, c in zip(ids[1:], counts[1:])])
            logits = model(**whole).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / count
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optim.step()
        optim.zero_grad()
        losses.append(total)
    return losses


def answers(processor, model):
    """The ids that each turn adds, and its greedy answer; each turn reads all pictures before it."""
    at = processor.tokenizer.convert_tokens_to_ids
    ids, pixels, grids = [], [], []
    for i, message in enumerate(TURNS):
        text = processor.apply_chat_template([message], add_generation_prompt=True)
        if i > 0:
            text = "<|im_end|>\n" + text[text.index("<|im_start|>user"):]
        names = [p["image"] for p in message["content"] if "image" in p]
        new = processor(text=[text], images=[Image.open(HERE / n) for n in names] or None,
                        return_tensors="pt")
        if names:
            pixels.append(new["pixel_values"].double())
            grids.append(new["image_grid_thw"])
        ids += new["input_ids"][0].tolist()
        whole = torch.tensor([ids])
        with torch.no_grad():
            said = model.generate(
                input_ids=whole, attention_mask=torch.ones_like(whole), max_new_tokens=NEW,
                do_sample=False, pad_token_id=0, eos_token_id=None,
                mm_token_type_ids=(whole == at(SPECIAL[5])).long(),
                pixel_values=torch.cat(pixels), image_grid_thw=torch.cat(grids))
        said = said[0, whole.shape[1]:].tolist()
        ids += said
        yield new["input_ids"][0].tolist(), names, said


def listed(values, fmt="{}"):
    lines, line = [], "     "
    for v in values:
        word = " " + fmt.format(v) + ","
        if len(line) + len(word) > 98:
            lines.append(line)
            line = "     "
        line += word
    return "\n".join(lines + [line])


def write_learned(out, kind, c, processor, documents):
    """Writes losses of both ways to train a model of a class and a configuration, and its turns."""
    for name in ("full", "frozen_tower"):
        model = kind(c).double()
        fill(model)
        if name == "frozen_tower":
            model.model.visual.requires_grad_(False)
        losses = train(model, documents)
        out.write(f"   {name} = {{\n{listed(losses, '{:.12g}')}\n   }},\n")
    model = kind(c).double()
    fill(model)
    out.write("   turns = {\n")
    for ids, names, said in answers(processor, model):
        files = ", ".join(f"'{n}'" for n in names)
        out.write(f"   {{ images = {{ {files} }}, ids = {{\n{listed(ids)}\n   }}, answer = {{\n"
                  f"{listed(said)}\n   }} }},\n")
    out.write("   },\n}\n")


def main():
    doubles_only()
    torch.float = torch.float64
    HERE.mkdir(exist_ok=True)
    images()
    tok = tokenizer()
    image = T.Qwen2VLImageProcessor(patch_size=4, merge_size=2, temporal_patch_size=2,
                                    min_pixels=256, max_pixels=640)
    T.Qwen2_5_VLProcessor(image, tok, T.Qwen2VLVideoProcessor(patch_size=4),
                          chat_template=TEMPLATE).save_pretrained(HERE)
    processor = T.AutoProcessor.from_pretrained(HERE)
    with open(HERE / "chats.jsonl", "w") as f:
        for chat in CHATS:
            f.write(json.dumps({"messages": chat}) + "\n")
    out = open(HERE / "numbers.lua", "w")
    out.write(f"-- Written by spec/golden/vl_chat.py: transformers {T.__version__}.\n\n"
              f"return {{\n   steps = {STEPS}, lr = {LR},\n")
    c = config(tok)
    c._attn_implementation = "eager"
    c.architectures = ["Qwen2_5_VLForConditionalGeneration"]
    (HERE / "config.json").write_text(c.to_json_string())
    documents = [document(processor, chat) for chat in CHATS]
    model = T.Qwen2_5_VLForConditionalGeneration(c).double()
    for i, (whole, ids, counts) in enumerate(documents):
        out.write(f"   {{\n      ids = {{\n{listed(ids)}\n      }},\n")
        marks = ["".join("01"[x] for x in counts[k:k + 80]) for k in range(0, len(counts), 80)]
        out.write("      counts = '" + "'\n         .. '".join(marks) + "',\n")
        grids = whole.get("image_grid_thw")
        if grids is not None:
            rows = ", ".join("{ " + ", ".join(map(str, g)) + " }" for g in grids.tolist())
            out.write(f"      grids = {{ {rows} }},\n")
            positions, _ = model.model.get_rope_index(
                whole["input_ids"], whole["mm_token_type_ids"], grids, None, None,
                whole["attention_mask"])
            for k, axis in enumerate(("time", "height", "width")):
                out.write(f"      {axis} = {{\n{listed(positions[k, 0].tolist())}\n      }},\n")
            whole["pixel_values"] = whole["pixel_values"].double()
        out.write("   },\n")
    write_learned(out, T.Qwen2_5_VLForConditionalGeneration, c, processor, documents)


if __name__ == "__main__":
    main()
