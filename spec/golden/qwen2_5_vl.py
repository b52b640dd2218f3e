"""Configurations of Qwen2.5-VL that the `transformers` package writes, with what their models
compute of texts with images and videos.

    python spec/golden/qwen2_5_vl.py         # from the root of the tree; needs torch, transformers

Weights and pixels are sines, by the place of the published name of the parameter in sorted order
(see fill), so that none are stored. Computed in doubles and written for each case: to
qwen2_5_vl.lua config.json, and to qwen2_5_vl.safetensors ids, mask, labels, grids, positions and
rope_deltas, logits, the loss, what greedy generation adds with the logits of its steps and, a row
for each parameter in the order of their names, the largest gradient and SAMPLES of them at random
places (common.py).

    python spec/golden/qwen2_5_vl.py DIR

loads folders that tide has written of the same models, DIR/CASE, and prints the largest difference
of logits.
"""
import json
import pathlib
import sys
import textwrap

import torch
import transformers as T
from safetensors.torch import load_file, save_file

from common import as_f32, doubles_only, samples

V, SAMPLES, NEW = 41, 16, 4
IMAGE, VIDEO, START, END = 36, 37, 38, 39
SECTIONS = [1, 2, 1]
TEXT = dict(vocab_size=V, hidden_size=16, intermediate_size=12, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
            bos_token_id=1, eos_token_id=2, rope_parameters=dict(
                rope_type="default", rope_theta=100.0, mrope_section=SECTIONS))
VISION = dict(depth=2, hidden_size=16, intermediate_size=10, num_heads=2, patch_size=2,
              window_size=8, out_hidden_size=16, fullatt_block_indexes=[1], tokens_per_second=2)
YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16,
            mrope_section=[2, 1, 1])
# name: text, vision, outer fields, rows (numbers are text, lists the grids of images, tuples of
# videos, END: without the token that ends the last one), seconds, where padding is
CASES = {
    "text": ({}, {}, {}, [[4]], None, "left"),
    "image": ({}, {}, {}, [[2, [1, 4, 6], 3]], None, "left"),
    "images": ({}, dict(fullatt_block_indexes=[0]), {}, [
        [1, [1, 2, 2], 1, [1, 6, 10], 2], [3], [1, [1, 10, 2], 2]], None, "left"),
    "images_right": ({}, {}, dict(tie_word_embeddings=True), [[1, [1, 4, 4], 3], [2, [1, 2, 6], 1]],
                     None, "right"),
    "video": ({}, {}, {}, [[2, (3, 4, 4), 2]], [0.5], "left"),
    "videos": ({}, dict(temporal_patch_size=1, in_channels=1), {}, [
        [1, (2, 2, 6), 1, (4, 4, 2), 3]], [1.5, 0.25], "left"),
    "mixed": (dict(num_key_value_heads=2, num_hidden_layers=1), dict(
        depth=3, fullatt_block_indexes=[0, 2], window_size=5), {}, [
        [2, (2, 4, 2), 1, [1, 4, 4], 2], [1, [1, 2, 4], 1, (1, 6, 2), 2]], [1.0, 2.0], "left"),
    "merge_3": ({}, dict(spatial_merge_size=3, window_size=12, num_heads=1, hidden_size=12), {}, [
        [1, [1, 3, 6], 1, [1, 9, 6], 1]], None, "left"),
    "merge_1": ({}, dict(spatial_merge_size=1, window_size=4), {}, [[1, [1, 3, 5], 2]], None,
                "left"),
    # an answer goes on from the last token on each axis: of a text behind a late frame, of an image
    "ahead": ({}, {}, {}, [[1, (6, 2, 2), 2], [2, [1, 4, 6], END], [1, [1, 2, 6], 3]], [2.0], "left"),
    "yarn": (dict(rope_parameters=YARN), {}, {}, [[1, [1, 4, 6], 3]], None, "left"),
}


def published(name):
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")


def sines(k, *shape):
    n = torch.Size(shape).numel()
    return ((torch.arange(n, dtype=torch.float64) * 0.7 + 1.3 * k).sin() * 0.3).reshape(shape)


def fill(model):
    tied = model.config.tie_word_embeddings
    names = {published(n): p for n, p in model.named_parameters()
             if not (tied and n.startswith("lm_head"))}
    with torch.no_grad():
        for k, name in enumerate(sorted(names)):
            t = sines(k, *names[name].shape)
            names[name].copy_(t / 3 + 1 if "norm" in name or ".ln_" in name else t)
    return names


def inputs(vision, rows, seconds, side, apart=False):
    """Ids, mask and what the model takes beside them. The pixels of a kind are one row of sines.
    apart: each frame of a video has a token before it that stands for its time."""
    merge, ids, grids = vision.get("spatial_merge_size", 2), [], {"image": [], "video": []}
    for b, row in enumerate(rows):
        line = []
        for part in row:
            if part == END:
                line.pop()
            elif isinstance(part, int):
                line += [(7 * (len(line) + i) + 3 * b) % 30 + 3 for i in range(part)]
            else:
                kind = "image" if isinstance(part, list) else "video"
                grids[kind].append(list(part))
                frames = part[0] if kind == "video" and apart else 1
                n = part[0] * part[1] * part[2] // merge ** 2 // frames
                for frame in range(frames):
                    line += [frame + 5] * (kind == "video" and apart)
                    line += [START] + [IMAGE if kind == "image" else VIDEO] * n + [END]
        ids.append(line)
    length = max(map(len, ids))

    def padded(line, value):
        pad = [value] * (length - len(line))
        return pad + line if side == "left" else line + pad

    mask = torch.tensor([padded([1] * len(line), 0) for line in ids])
    ids = torch.tensor([padded(line, 0) for line in ids])
    numel = (vision.get("in_channels", 3) * vision.get("temporal_patch_size", 2)
             * vision["patch_size"] ** 2)
    more = {}
    for kind, names in (("image", ("pixel_values", "image_grid_thw")),
                        ("video", ("pixel_values_videos", "video_grid_thw"))):
        if grids[kind]:
            grid = torch.tensor(grids[kind])
            more[names[1]] = grid
            more[names[0]] = sines(5, int(grid.prod(-1).sum()), numel) * 3
    if seconds:
        more["second_per_grid_ts"] = torch.tensor(seconds)
    return ids, mask, more


def labels_of(ids, mask):
    """The next tokens, but those that stand for images and those beside padding."""
    labels = torch.full_like(ids, -100)
    labels[:, :-1] = torch.where((mask[:, :-1] == 1) & (mask[:, 1:] == 1), ids[:, 1:], -100)
    return labels.masked_fill((labels == IMAGE) | (labels == VIDEO), -100)


def run(name, case, out, numbers):
    text, vision, outer, rows, seconds, side = case
    vision = {**VISION, **vision}
    config = T.Qwen2_5_VLConfig(text_config={**TEXT, **text}, vision_config=vision,
                                image_token_id=IMAGE, video_token_id=VIDEO,
                                vision_start_token_id=START, vision_end_token_id=END, **outer)
    config._attn_implementation = "eager"
    model = T.Qwen2_5_VLForConditionalGeneration(config).double().eval()
    names = fill(model)
    ids, mask, more = inputs(vision, rows, seconds, side)
    has = bool(more)
    kinds = dict(mm_token_type_ids=(ids == IMAGE).int() + 2 * (ids == VIDEO).int()) if has else {}
    logits = model(ids, attention_mask=mask, **kinds, **more).logits
    labels = labels_of(ids, mask)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), labels.reshape(-1))
    loss.backward()
    found = dict(ids=ids, mask=mask, labels=labels, logits=logits, loss=loss.reshape(1))
    if has:
        found["positions"], found["deltas"] = model.model.get_rope_index(
            ids, kinds["mm_token_type_ids"], more.get("image_grid_thw"),
            more.get("video_grid_thw"), more.get("second_per_grid_ts"), mask)
    found["grads"] = torch.stack([
        samples(k, names[n].grad if names[n].grad is not None else torch.zeros(1), SAMPLES)
        for k, n in enumerate(sorted(names))])
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
    config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
    text = "\n".join(textwrap.wrap(json.dumps(json.loads(config.to_json_string())), 94,
                                   break_long_words=False, break_on_hyphens=False))
    out.write(f"   {name} = [==[\n{text}]==],\n")


def check(folder):
    numbers = load_file("spec/golden/qwen2_5_vl.safetensors")
    for sub in sorted(p for p in pathlib.Path(folder).iterdir() if (p / "config.json").exists()):
        _, vision, _, rows, seconds, side = CASES[sub.name]
        ids, mask, more = inputs({**VISION, **vision}, rows, seconds, side)
        more = {k: v.float() if v.is_floating_point() else v for k, v in more.items()}
        if more:
            more["mm_token_type_ids"] = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
        model = T.Qwen2_5_VLForConditionalGeneration.from_pretrained(
            sub, attn_implementation="eager", dtype=torch.float32).eval()
        keep = mask[:, :, None]
        got = model(ids, attention_mask=mask, **more).logits.detach() * keep
        want = numbers[sub.name + ".logits"] * keep
        off = float((got - want).abs().max() / want.abs().max())
        print(f"{sub.name:16s} {off:.3g}", "" if off < 2e-5 else "DIFFERENT")


def main():
    T.logging.set_verbosity_error()
    if len(sys.argv) > 1:
        check(sys.argv[1])
    else:
        doubles_only()
        torch.float = torch.float64
        numbers = {}
        with open("spec/golden/qwen2_5_vl.lua", "w") as out:
            out.write("-- Written by spec/golden/qwen2_5_vl.py: configurations of the transformers "
                      f"package, version\n-- {T.__version__}.\n\nreturn {{\n")
            for name, case in CASES.items():
                run(name, case, out, numbers)
            out.write("}\n")
        save_file(numbers, "spec/golden/qwen2_5_vl.safetensors")


if __name__ == "__main__":
    main()
