"""Configurations of Gemma 3 with images that the `transformers` package writes, with what their models
compute of texts with images.

    python spec/golden/gemma3_vl.py          # from the root of the tree; needs torch, transformers

Weights, pixels, what is written (to gemma3_vl.lua and gemma3_vl.safetensors) and the order of
parameters, which is that of their names in tide, are as in qwen2_5_vl.py. Pixels are those of
patches in the order of tide, block by block.

    python spec/golden/gemma3_vl.py DIR

loads folders that tide has written of the same models, DIR/CASE, and prints the largest difference
of logits.
"""
import json
import pathlib
import sys

import torch
import transformers as T
from safetensors.torch import load_file, save_file

from common import as_f32, doubles_only, samples, wrapped
from qwen2_5_vl import END, IMAGE, NEW, SAMPLES, START, V, labels_of, sines

TEXT = dict(vocab_size=V, hidden_size=16, intermediate_size=12, num_hidden_layers=3,
            num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=64,
            bos_token_id=1, eos_token_id=2, pad_token_id=0, query_pre_attn_scalar=8, sliding_window=3,
            rope_theta=100.0, rope_local_base_freq=20.0,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"])
VISION = dict(hidden_size=8, intermediate_size=10, num_hidden_layers=2, num_attention_heads=2,
              image_size=8, patch_size=2, vision_use_head=False)
# name: text, vision, outer fields, rows (numbers are text, "i" an image, "b" one between the tokens
# that begin and end it), where padding is
CASES = {
    "text": ({}, {}, {}, [[6]], "left"),
    "image": ({}, {}, {}, [[2, "b", 3]], "left"),
    # the window is shorter than an image, and longer
    "images": (dict(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"]), {}, {}, [
        [1, "b", 2, "b", 2], [3], [1, "b", 2]], "left"),
    "images_right": (dict(sliding_window=7), dict(vision_use_head=True),
                     dict(tie_word_embeddings=False), [[1, "b", 3], [2, "i", 1]], "right"),
    # one run, as no token lies between
    "beside": (dict(num_key_value_heads=2, attention_bias=True), {}, {}, [[2, "i", "i", 2]], "left"),
    "pool_1": ({}, dict(image_size=6, patch_size=3, num_channels=1), {}, [[1, "b", "b", 2]], "left"),
    "one_token": ({}, {}, dict(mm_tokens_per_image=1), [[2, "b", 2, "i", 1]], "left"),
    "linear": (dict(rope_scaling=dict(rope_type="linear", factor=4.0), sliding_window=5,
                    layer_types=["sliding_attention"] * 3), {}, dict(mm_tokens_per_image=16),
               [["i", 3, "b"], ["b", 4]], "left"),
}


def own_name(name):
    return (name.replace("model.language_model.", "model.").replace("model.vision_tower.", "visual.")
            .replace("model.multi_modal_projector.", "visual.projector."))


def fill(model):
    """Fills the parameters that tide has, and returns them by its names."""
    tied = model.config.tie_word_embeddings
    named = {own_name(n): p for n, p in model.named_parameters()
             if not (tied and n.startswith("lm_head")) and ".head." not in n}
    with torch.no_grad():
        for k, name in enumerate(sorted(named)):
            t = sines(k, *named[name].shape)
            named[name].copy_(t / 3 + 1 if "norm" in name or ".ln_" in name else t)
    return named


def config_of(text, vision, outer):
    config = T.Gemma3Config(
        text_config={**TEXT, **text}, vision_config={**VISION, **vision},
        **{"mm_tokens_per_image": 4, "image_token_index": IMAGE, "boi_token_index": START,
           "eoi_token_index": END, **outer})
    config._attn_implementation = "eager"
    return config


def inputs(config, rows, side):
    """Ids, mask and what the model takes beside them, with the grids that tide takes."""
    vision, n, ids, count = config.vision_config, config.mm_tokens_per_image, [], 0
    for b, row in enumerate(rows):
        line = []
        for part in row:
            if isinstance(part, int):
                line += [(7 * (len(line) + i) + 3 * b) % 30 + 3 for i in range(part)]
                continue
            line += [START] * (part == "b") + [IMAGE] * n + [END] * (part == "b")
            count += 1
        ids.append(line)
    length = max(map(len, ids))

    def padded(line, value):
        pad = [value] * (length - len(line))
        return pad + line if side == "left" else line + pad

    mask = torch.tensor([padded([1] * len(line), 0) for line in ids])
    ids = torch.tensor([padded(line, 0) for line in ids])
    if not count:
        return ids, mask, {}, {}
    p, c, g = vision.patch_size, vision.num_channels, vision.image_size // vision.patch_size
    m = g // int(n ** 0.5)
    patches = sines(5, count * g * g, c * p * p) * 3
    pixels = patches.reshape(count, g // m, g // m, m, m, c, p, p).permute(0, 5, 1, 3, 6, 2, 4, 7)
    more = dict(pixel_values=pixels.reshape(count, c, g * p, g * p),
                token_type_ids=(ids == IMAGE).long())
    return ids, mask, more, dict(image_grid_thw=torch.tensor([[1, g, g]] * count))


def run(name, case, out, numbers):
    text, vision, outer, rows, side = case
    config = config_of(text, vision, outer)
    model = T.Gemma3ForConditionalGeneration(config).double().eval()
    named = fill(model)
    ids, mask, more, grids = inputs(config, rows, side)
    logits = model(ids, attention_mask=mask, **more).logits
    labels = labels_of(ids, mask)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), labels.reshape(-1))
    loss.backward()
    found = dict(ids=ids, mask=mask, labels=labels, loss=loss.reshape(1), **grids,
                 logits=torch.where(mask[:, :, None] == 1, logits, 0.0))
    found["grads"] = torch.stack([
        samples(k, torch.zeros(1) if named[n].grad is None else named[n].grad, SAMPLES)
        for k, n in enumerate(sorted(named))])
    if side == "left":
        with torch.no_grad():
            said = model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False,
                pad_token_id=0, eos_token_id=None, output_logits=True,
                return_dict_in_generate=True, **more)
            found["generated"] = said.sequences[:, ids.shape[1]:]
            found["steps"] = torch.stack(said.logits)
    for key, t in found.items():
        t = t.detach()
        numbers[f"{name}.{key}"] = (as_f32(t) if t.is_floating_point() else t).contiguous()
    config.architectures = ["Gemma3ForConditionalGeneration"]
    out.write(f"   {name} = [==[\n{wrapped(json.dumps(json.loads(config.to_json_string())))}]==],\n")


def check(folder):
    numbers = load_file("spec/golden/gemma3_vl.safetensors")
    for sub in sorted(p for p in pathlib.Path(folder).iterdir() if (p / "config.json").exists()):
        text, vision, outer, rows, side = CASES[sub.name]
        ids, mask, more, _ = inputs(config_of(text, vision, outer), rows, side)
        more = {k: v.float() if v.is_floating_point() else v for k, v in more.items()}
        model, said = T.Gemma3ForConditionalGeneration.from_pretrained(
            sub, attn_implementation="eager", dtype=torch.float32, output_loading_info=True)
        got = model.eval()(ids, attention_mask=mask, **more).logits.detach()
        got = torch.where(mask[:, :, None] == 1, got, 0.0)
        want = numbers[sub.name + ".logits"]
        off = float((got - want).abs().max() / want.abs().max())
        print(f"{sub.name:16s} {off:.3g}", "" if off < 2e-5 else "DIFFERENT",
              said["missing_keys"] or "", said["unexpected_keys"] or "")


def main():
    T.logging.set_verbosity_error()
    if len(sys.argv) > 1:
        return check(sys.argv[1])
    doubles_only()
    torch.float = torch.float64
    numbers = {}
    with open("spec/golden/gemma3_vl.lua", "w") as out:
        out.write("-- Written by spec/golden/gemma3_vl.py: configurations of the transformers package, "
                  f"version\n-- {T.__version__}.\n\nreturn {{\n")
        for name, case in CASES.items():
            run(name, case, out, numbers)
        out.write("}\n")
    save_file(numbers, "spec/golden/gemma3_vl.safetensors")


if __name__ == "__main__":
    main()
