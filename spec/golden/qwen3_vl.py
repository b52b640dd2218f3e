"""Configurations of Qwen3-VL and Qwen3-VL-MoE that the `transformers` package writes, with what their
models compute of texts with images and videos.

    python spec/golden/qwen3_vl.py           # from the root of the tree; needs torch, transformers

Weights, pixels, what is written (to qwen3_vl.lua and qwen3_vl.safetensors) and the names of
parameters are as in qwen2_5_vl.py, whose functions these are. Experts have the names of tide: a
projection each.

    python spec/golden/qwen3_vl.py DIR

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
from qwen2_5_vl import (END, IMAGE, NEW, SAMPLES, START, V, VIDEO, inputs, labels_of, published,
                        sines)

ROPE = dict(rope_type="default", rope_theta=100.0, mrope_interleaved=True, mrope_section=[2, 1, 1])
TEXT = dict(vocab_size=V, hidden_size=16, intermediate_size=12, num_hidden_layers=3,
            num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=64,
            bos_token_id=1, eos_token_id=2, rope_parameters=ROPE)
VISION = dict(depth=3, hidden_size=16, intermediate_size=10, num_heads=2, patch_size=2,
              out_hidden_size=16, num_position_embeddings=16, deepstack_visual_indexes=[0, 1])
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6, num_hidden_layers=2,
           output_router_logits=False)
# name: text, vision, outer fields, rows (numbers are text, lists the grids of images, tuples of
# videos, END: without the token that ends the last one), where padding is
CASES = {
    "text": ({}, {}, {}, [[4]], "left"),
    "image": ({}, {}, {}, [[2, [1, 4, 6], 3]], "left"),
    "images": (dict(attention_bias=True), dict(deepstack_visual_indexes=[2]), {}, [
        [1, [1, 2, 2], 1, [1, 6, 10], 2], [3], [1, [1, 10, 2], 2]], "left"),
    "images_right": ({}, {}, dict(tie_word_embeddings=True), [[1, [1, 4, 4], 3], [2, [1, 2, 6], 1]],
                     "right"),
    "video": ({}, {}, {}, [[2, (3, 4, 4), 2]], "left"),
    # features of a later block come first; each layer of the text adds some
    "mixed": (dict(num_key_value_heads=2, num_hidden_layers=2), dict(
        deepstack_visual_indexes=[2, 0]), {}, [
        [2, (2, 4, 2), 1, [1, 4, 4], 2], [1, [1, 2, 4], 1, (1, 6, 2), 2]], "left"),
    "plain": (dict(rope_parameters=dict(rope_type="default", rope_theta=50.0), head_dim=20), dict(
        deepstack_visual_indexes=[], num_position_embeddings=30), {}, [[1, [1, 6, 4], 2]], "left"),
    "merge_1": ({}, dict(spatial_merge_size=1, temporal_patch_size=1, in_channels=1), {}, [
        [1, [1, 3, 5], 2]], "left"),
    "ahead": ({}, {}, {}, [[1, (4, 2, 2), 2], [2, [1, 4, 6], END], [1, [1, 2, 6], 3]], "left"),
    "moe": (MOE, {}, {}, [[2, [1, 4, 6], 3]], "left"),
    "moe_mixed": ({**MOE, "num_hidden_layers": 3, "mlp_only_layers": [1], "num_key_value_heads": 2},
                  {}, {}, [
        [2, (2, 4, 2), 1, [1, 4, 4], 2], [1, [1, 2, 4], 1, (1, 6, 2), 2]], "left"),
}


def parts_of(name, t):
    """The tensors of tide, { name: view }, that lie in a tensor of transformers."""
    name = published(name)
    if name.endswith("experts.gate_up_proj"):
        half, path = t.shape[1] // 2, name[:-len("experts.gate_up_proj")]
        return {path + "gate_proj": t[:, :half], path + "up_proj": t[:, half:]}
    return {name.replace("experts.down_proj", "down_proj").replace("mlp.gate.weight", "mlp.router")
            if ".mlp." in name else name: t}


def fill(model):
    """Fills the parameters by their places in the order of tide's names; returns these, with the
    parameters that hold them."""
    tied, views, named = model.config.tie_word_embeddings, {}, {}
    for name, p in model.named_parameters():
        if not (tied and name.startswith("lm_head")):
            for own, view in parts_of(name, p.data).items():
                views[own], named[own] = view, (name, p)
    for k, own in enumerate(sorted(views)):
        t = sines(k, *views[own].shape)
        views[own].copy_(t / 3 + 1 if "norm" in own or ".ln_" in own else t)
    return named


def gradient(named, own):
    name, p = named[own]
    return torch.zeros(1) if p.grad is None else parts_of(name, p.grad)[own]


def config_of(name, text, vision, outer):
    kind = T.Qwen3VLMoeConfig if name.startswith("moe") else T.Qwen3VLConfig
    config = kind(text_config={**TEXT, **text}, vision_config={**VISION, **vision},
                  image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START,
                  vision_end_token_id=END, **outer)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


def class_of(name):
    return (T.Qwen3VLMoeForConditionalGeneration if name.startswith("moe")
            else T.Qwen3VLForConditionalGeneration)


def run(name, case, out, numbers):
    text, vision, outer, rows, side = case
    config = config_of(name, text, vision, outer)
    model = class_of(name)(config).double().eval()
    named = fill(model)
    ids, mask, more = inputs({**VISION, **vision}, rows, None, side, True)
    has = bool(more)
    kinds = dict(mm_token_type_ids=(ids == IMAGE).int() + 2 * (ids == VIDEO).int()) if has else {}
    logits = model(ids, attention_mask=mask, **kinds, **more).logits
    labels = labels_of(ids, mask)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), labels.reshape(-1))
    loss.backward()
    found = dict(ids=ids, mask=mask, labels=labels, logits=logits, loss=loss.reshape(1))
    if has:
        found["positions"], found["deltas"] = model.model.get_rope_index(
            input_ids=ids, image_grid_thw=more.get("image_grid_thw"),
            video_grid_thw=more.get("video_grid_thw"), attention_mask=mask, **kinds)
    found["grads"] = torch.stack([samples(k, gradient(named, own), SAMPLES)
                                  for k, own in enumerate(sorted(named))])
    if side == "left":
        with torch.no_grad():
            said = model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False,
                pad_token_id=0, eos_token_id=None, output_logits=True,
                return_dict_in_generate=True, **kinds, **more)
            found["generated"] = said.sequences[:, ids.shape[1]:]
            found["steps"] = torch.stack(said.logits)
    for key, t in {**found, **{k: v for k, v in more.items() if not k.startswith("pixel")}}.items():
        t = t.detach()
        numbers[f"{name}.{key}"] = (as_f32(t) if t.is_floating_point() else t).contiguous()
    config.architectures = [class_of(name).__name__]
    out.write(f"   {name} = [==[\n{wrapped(json.dumps(json.loads(config.to_json_string())))}]==],\n")


def check(folder):
    numbers = load_file("spec/golden/qwen3_vl.safetensors")
    for sub in sorted(p for p in pathlib.Path(folder).iterdir() if (p / "config.json").exists()):
        _, vision, _, rows, side = CASES[sub.name]
        ids, mask, more = inputs({**VISION, **vision}, rows, None, side, True)
        more = {k: v.float() if v.is_floating_point() else v for k, v in more.items()}
        if more:
            more["mm_token_type_ids"] = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
        model, said = class_of(sub.name).from_pretrained(
            sub, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32,
            output_loading_info=True)
        keep = mask[:, :, None]
        got = model.eval()(ids, attention_mask=mask, **more).logits.detach() * keep
        want = numbers[sub.name + ".logits"] * keep
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
    with open("spec/golden/qwen3_vl.lua", "w") as out:
        out.write("-- Written by spec/golden/qwen3_vl.py: configurations of the transformers package, "
                  f"version\n-- {T.__version__}.\n\nreturn {{\n")
        for name, case in CASES.items():
            run(name, case, out, numbers)
        out.write("}\n")
    save_file(numbers, "spec/golden/qwen3_vl.safetensors")


if __name__ == "__main__":
    main()
