"""Small pictures of all kinds that PIL writes, with their pixels and their patches.

    python spec/golden/image.py      # from the root of the tree; needs Pillow, torch, torchvision,
                                     # transformers

Writes spec/golden/image.safetensors, all as u8 or numbers:

    file/NAME         the bytes of a file
    pixels/NAME       [height, width, 3] of transformers' load_image: exif_transpose, convert('RGB')
    patches/NAME      f32 pixel_values of Qwen2VLImageProcessor with FIELDS, of pixels/NAME
    grid/NAME         image_grid_thw
    video, video_grid what Qwen2VLVideoProcessor makes of the frames FRAMES
    sizes             rows of smart_resize: height, width, factor, least, most, rows, columns
    ids/TEXT          a text of Qwen2.5-VL with the pictures of TEXTS, placeholders expanded
    logits/TEXT       the logits of its last token; answer/TEXT: what greedy generation adds

The model is the case "images" of spec/golden/qwen2_5_vl.py, with its weights.
"""
import io
import json
import pathlib
import re

import numpy as np
import torch
import transformers as T
from PIL import Image, PngImagePlugin
from safetensors.numpy import save_file
from transformers import Qwen2VLImageProcessor, Qwen2VLVideoProcessor
from transformers.image_utils import load_image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

OUT = pathlib.Path("spec/golden/image.safetensors")
FIELDS = dict(patch_size=2, merge_size=2, temporal_patch_size=2, min_pixels=60, max_pixels=120)
PLAIN = ["grey", "rgb", "jpeg", "tall", "tiny"]           # with patches
FRAMES = ["rgb", "rgb_interlaced", "rgba"]
TEXTS = {"one": ["jpeg"], "turned": ["jpeg_exif_6"], "two": ["grey_alpha", "webp_exif"],
         "three": ["palette", "tall", "jpeg_cmyk"], "none": []}
IMAGE, START, END = 36, 38, 39
random = np.random.default_rng(7)


def pixels(h, w, channels, kind=np.uint8, most=256):
    """Returns smooth random pixels: a coarse image, enlarged."""
    coarse = random.integers(0, most, (h // 3 + 2, w // 3 + 2, channels)).astype(np.float32)
    planes = [np.array(Image.fromarray(coarse[:, :, c]).resize((w, h), Image.BILINEAR))
              for c in range(channels)]
    return np.stack(planes, -1).astype(kind).squeeze(-1 if channels == 1 else ())


def exif(orientation):
    e = Image.Exif()
    e[0x0112] = orientation
    return e


def chunk_png(text):
    """Returns PNG metadata with XMP, or with a gamma that changes nothing in PIL."""
    info = PngImagePlugin.PngInfo()
    if text == "gamma":
        info.add(b"gAMA", (100000).to_bytes(4, "big"))
    else:
        info.add_itxt("XML:com.adobe.xmp", text)
    return info


def pictures():
    """Yields name, format, image, options of save."""
    h, w = 9, 13
    rgb = Image.fromarray(pixels(h, w, 3))
    yield "rgb", "PNG", rgb, {}
    yield "tall", "PNG", Image.fromarray(pixels(31, 4, 3)), {}
    yield "tiny", "PNG", Image.fromarray(pixels(1, 2, 3)), {}
    yield "grey", "PNG", Image.fromarray(pixels(h, w, 1)), {}
    yield "grey_alpha", "PNG", Image.fromarray(pixels(h, w, 2)), {}
    yield "rgba", "PNG", Image.fromarray(pixels(h, w, 4)), {}
    yield "rgb_interlaced", "PNG", rgb, {}                 # see interlaced
    yield "black_white", "PNG", rgb.convert("1"), {}
    yield "palette", "PNG", rgb.quantize(256), {}
    yield "palette_4", "PNG", rgb.quantize(4), {"bits": 2}
    yield "palette_clear", "PNG", rgb.quantize(16), {"transparency": 3}
    yield "grey_16", "PNG", Image.fromarray(pixels(h, w, 1, np.uint16, 400)), {}
    yield "gamma", "PNG", rgb, {"pnginfo": chunk_png("gamma")}
    yield "png_exif", "PNG", rgb, {"exif": exif(6)}
    yield "png_xmp", "PNG", rgb, {"pnginfo": chunk_png('<x tiff:Orientation="8"/>')}
    yield "jpeg", "JPEG", rgb, {"quality": 90}
    yield "jpeg_grey", "JPEG", rgb.convert("L"), {}
    yield "jpeg_progressive", "JPEG", rgb, {"progressive": True}
    yield "jpeg_422", "JPEG", rgb, {"subsampling": "4:2:2"}
    yield "jpeg_cmyk", "JPEG", rgb.convert("CMYK"), {}
    for i in range(10):
        yield f"jpeg_exif_{i}", "JPEG", rgb, {"exif": exif(i), "quality": 30}
    yield "jpeg_xmp", "JPEG", rgb, {"xmp": b"<x><tiff:Orientation>5</tiff:Orientation></x>",
                                    "quality": 30}
    yield "webp", "WEBP", rgb, {}
    yield "webp_lossless", "WEBP", rgb, {"lossless": True}
    yield "webp_alpha", "WEBP", Image.fromarray(pixels(h, w, 4)), {}
    yield "webp_exif", "WEBP", rgb, {"exif": exif(7)}


def interlaced(bytes_, rgb):
    """Returns a PNG of 8-bit RGB as one with seven passes (Adam7), which PIL does not write."""
    import struct
    import zlib
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
              (0, 1, 1, 2)]
    a, raw = np.array(rgb), b""
    for x, y, dx, dy in passes:
        part = a[y::dy, x::dx]
        if part.size:
            raw += b"".join(b"\0" + row.tobytes() for row in part)

    def chunk(name, data):
        return (struct.pack(">I", len(data)) + name + data
                + struct.pack(">I", zlib.crc32(name + data)))
    head = struct.pack(">IIBBBBB", a.shape[1], a.shape[0], 8, 2, 0, 0, 1)
    return bytes_[:8] + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(
        b"IEND", b"")


def rgb_16(channels):
    """Returns a PNG with channels of 16 bits, which PIL reads and does not write."""
    import struct
    import zlib
    h, w = 9, 13
    a = pixels(h, w, channels, np.uint16, 65536)
    raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in a)

    def chunk(name, data):
        return (struct.pack(">I", len(data)) + name + data
                + struct.pack(">I", zlib.crc32(name + data)))
    head = struct.pack(">IIBBBBB", w, h, 16, {3: 2, 4: 6, 2: 4}[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(
        raw)) + chunk(b"IEND", b"")


def sizes():
    rows = []
    while len(rows) < 300:
        h, w = (int(2 ** random.uniform(0, 12)) for _ in range(2))
        factor = int(random.choice([4, 14, 28, 32]))
        least = int(2 ** random.uniform(4, 18))
        most = least * int(random.integers(1, 20))
        if max(h, w) / min(h, w) <= 200:
            rows.append([h, w, factor, least, most, *smart_resize(h, w, factor, least, most)])
    return np.array(rows, dtype=np.int64)


def model():
    """Returns the model, whose weights are sines by the place of their names."""
    found = re.search(r"images = \[==\[(.*?)\]==\]", open("spec/golden/qwen2_5_vl.lua").read(), re.S)
    config = T.Qwen2_5_VLConfig(**json.loads(found[1].replace("\n", " ")))
    made = T.Qwen2_5_VLForConditionalGeneration(config).eval()
    names = {n.replace("model.visual.", "visual.").replace("model.language_model.", "model."): p
             for n, p in made.named_parameters()}
    with torch.no_grad():
        for k, name in enumerate(sorted(names)):
            p = names[name]
            t = ((torch.arange(p.numel(), dtype=torch.float64) * 0.7 + 1.3 * k).sin() * 0.3)
            t = t.reshape(p.shape)
            p.copy_(t / 3 + 1 if "norm" in name or ".ln_" in name else t)
    return made


def texts(processor, decoded):
    """Returns the tensors of TEXTS."""
    out, vl = {}, model()
    for name, names in TEXTS.items():
        ids, more = [1, 5], {}
        if names:
            more = processor(images=[Image.fromarray(decoded[n]) for n in names],
                             return_tensors="pt")
            for grid in more["image_grid_thw"].tolist():
                ids += [START] + [IMAGE] * (grid[1] * grid[2] // 4) + [END, 7]
        ids = torch.tensor([ids + [9, 3]])
        with torch.no_grad():
            kinds = {"mm_token_type_ids": (ids == IMAGE).int()} if names else {}
            out[f"logits/{name}"] = vl(ids, **more, **kinds).logits[0, -1].numpy()
            out[f"answer/{name}"] = vl.generate(
                input_ids=ids, max_new_tokens=6, do_sample=False, eos_token_id=None,
                pad_token_id=0, **more, **kinds)[0, ids.shape[1]:].numpy()
        out[f"ids/{name}"] = ids[0].numpy()
    return out


def main():
    out, decoded = {"sizes": sizes()}, {}
    files = []
    for name, kind, image, options in pictures():
        f = io.BytesIO()
        image.save(f, kind, **options)
        data = f.getvalue()
        files.append((name, interlaced(data, image) if name == "rgb_interlaced" else data))
    files += [(f"channels_16_{n}", rgb_16(n)) for n in (2, 3, 4)]
    for name, data in files:
        decoded[name] = np.array(load_image(Image.open(io.BytesIO(data))))
        out[f"file/{name}"] = np.frombuffer(data, dtype=np.uint8)
        out[f"pixels/{name}"] = decoded[name]
    processor = Qwen2VLImageProcessor(**FIELDS)
    for name in PLAIN:
        got = processor(images=[torch.from_numpy(decoded[name]).permute(2, 0, 1)],
                        return_tensors="pt", input_data_format="channels_first")
        out[f"patches/{name}"] = got["pixel_values"].numpy()
        out[f"grid/{name}"] = got["image_grid_thw"].numpy()
    out.update(texts(processor, decoded))
    video = torch.stack([torch.from_numpy(decoded[name]).permute(2, 0, 1) for name in FRAMES])
    got = Qwen2VLVideoProcessor(**FIELDS)(videos=[video], return_tensors="pt",
                                          do_sample_frames=False)
    out["video"] = got["pixel_values_videos"].numpy()
    out["video_grid"] = got["video_grid_thw"].numpy()
    save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, OUT)


main()
