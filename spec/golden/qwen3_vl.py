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


class Family:
    """What a script computes. file: where to, without an end; cases: as CASES; vision: fields of all
    towers; config_of(text, vision, outer, is_moe); class_of(is_moe); routed: the name in tide of the
    experts of a layer, with a dot, or nothing."""

    def __init__(self, file, cases, vision, config_of, class_of, routed=""):
        self.file, self.cases, self.vision, self.routed = file, cases, vision, routed
        self.config_of, self.class_of = config_of, class_of

    def inputs(self, name):
        _, vision, _, rows, side = self.cases[name]
        return inputs({**self.vision, **vision}, rows, None, side, True)


def parts_of(name, t, routed):
    """The tensors of tide, { name: view }, that lie in a tensor of transformers."""
    name = published(name)
    layer, _, rest = name.partition(".mlp.")
    at = f"{layer}.mlp.{routed}"
    if rest == "experts.gate_up_proj":
        half = t.shape[1] // 2
        return {at + "gate_proj": t[:, :half], at + "up_proj": t[:, half:]}
    return {{"experts.down_proj": at + "down_proj", "gate.weight": at + "router"}.get(rest, name): t}


def fill(model, routed):
    """Fills the parameters by their places in the order of tide's names; returns these, with the
    parameters that hold them."""
    tied, views, named = model.config.tie_word_embeddings, {}, {}
    for name, p in model.named_parameters():
        if not (tied and name.startswith("lm_head")):
            for own, view in parts_of(name, p.data, routed).items():
                views[own], named[own] = view, (name, p)
    for k, own in enumerate(sorted(views)):
        t = sines(k, *views[own].shape)
        views[own].copy_(t / 3 + 1 if "norm" in own or ".ln_" in own else t)
    return named


def gradient(named, own, routed):
    name, p = named[own]
    return torch.zeros(1) if p.grad is None else parts_of(name, p.grad, routed)[own]


def config_of(kind, text, vision, outer):
    """A configuration of the class `kind`, of fields of its parts."""
    config = kind(text_config=text, vision_config=vision, image_token_id=IMAGE,
                  video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END,
                  **outer)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return config


def run(family, name, out, numbers):
    text, vision, outer, _, side = family.cases[name]
    is_moe = name.startswith("moe")
    config = family.config_of(text, vision, outer, is_moe)
    model = family.class_of(is_moe)(config).double().eval()
    named = fill(model, family.routed)
    ids, mask, more = family.inputs(name)
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
    found["grads"] = torch.stack([samples(k, gradient(named, own, family.routed), SAMPLES)
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
    config.architectures = [type(model).__name__]
    out.write(f"   {name} = [==[\n{wrapped(json.dumps(json.loads(config.to_json_string())))}]==],\n")


def check(family, folder):
    numbers = load_file(family.file + ".safetensors")
    for sub in sorted(p for p in pathlib.Path(folder).iterdir() if (p / "config.json").exists()):
        ids, mask, more = family.inputs(sub.name)
        more = {k: v.float() if v.is_floating_point() else v for k, v in more.items()}
        if more:
            more["mm_token_type_ids"] = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
        model, said = family.class_of(sub.name.startswith("moe")).from_pretrained(
            sub, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32,
            output_loading_info=True)
        keep = mask[:, :, None]
        got = model.eval()(ids, attention_mask=mask, **more).logits.detach() * keep
        want = numbers[sub.name + ".logits"] * keep
        off = float((got - want).abs().max() / want.abs().max())
        print(f"{sub.name:16s} {off:.3g}", "" if off < 2e-5 else "DIFFERENT",
              said["missing_keys"] or "", said["unexpected_keys"] or "")


def main(family):
    T.logging.set_verbosity_error()
    if len(sys.argv) > 1:
        return check(family, sys.argv[1])
    doubles_only()
    torch.float = torch.float64
    numbers = {}
    with open(family.file + ".lua", "w") as out:
        out.write(f"-- Written by {family.file}.py: configurations of the transformers package, "
                  f"version\n-- {T.__version__}.\n\nreturn {{\n")
        for name in family.cases:
            run(family, name, out, numbers)
        out.write("}\n")
    save_file(numbers, family.file + ".safetensors")


def qwen3_vl(text, vision, outer, is_moe):
    return config_of(T.Qwen3VLMoeConfig if is_moe else T.Qwen3VLConfig, {**TEXT, **text},
                     {**VISION, **vision}, outer)


if __name__ == "__main__":
    main(Family("spec/golden/qwen3_vl", CASES, VISION, qwen3_vl,
                lambda is_moe: T.Qwen3VLMoeForConditionalGeneration if is_moe
                else T.Qwen3VLForConditionalGeneration))
