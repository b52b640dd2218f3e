"""Tiny random checkpoints of Mamba-2 and Nemotron-H as the `transformers` package writes them, with
what they compute.

    python spec/golden/backbones.py          # from the root of the tree; needs torch, transformers

For each variant a folder spec/golden/backbone/NAME: config.json and model.safetensors as
save_pretrained leaves them, expected.safetensors with ids, labels, logits, the loss (mean over
counted labels) and the gradient of every parameter ("grad NAME").
"""
import math
import pathlib
import shutil

import torch
import transformers as T
from safetensors.torch import load_file, save_file

V = 19
OUT = pathlib.Path("spec/golden/backbone")
MAMBA2 = dict(vocab_size=V, hidden_size=8, num_hidden_layers=2, num_heads=4, head_dim=4,
              state_size=5, chunk_size=4)
NEMOTRON = dict(vocab_size=V, hidden_size=8, num_attention_heads=4, num_key_value_heads=2,
                head_dim=2, intermediate_size=12, ssm_state_size=5, mamba_num_heads=4, mamba_head_dim=4,
                n_groups=2, chunk_size=4)
M, MLP, ATTENTION = "linear_attention", "mlp", "full_attention"
CASES = {
    "mamba2": (T.Mamba2Config, T.Mamba2ForCausalLM, dict(MAMBA2, n_groups=2)),
    "mamba2_tied": (T.Mamba2Config, T.Mamba2ForCausalLM, dict(
        MAMBA2, n_groups=1, tie_word_embeddings=True, use_bias=True, use_conv_bias=False,
        conv_kernel=3, time_step_limit=(0.05, 0.5))),
    "nemotron": (T.NemotronHConfig, T.NemotronHForCausalLM, dict(
        NEMOTRON, layers_block_type=[M, MLP, ATTENTION, M])),
    "nemotron_bias": (T.NemotronHConfig, T.NemotronHForCausalLM, dict(
        NEMOTRON, layers_block_type=[ATTENTION, M, MLP], use_bias=True, mlp_bias=True, head_dim=6,
        num_key_value_heads=4, mlp_hidden_act="gelu", n_groups=4)),
    "nemotron_limit": (T.NemotronHConfig, T.NemotronHForCausalLM, dict(
        NEMOTRON, layers_block_type=[M, M], time_step_min=0.3, time_step_max=0.5)),
}


def fill(model, seed):
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            r = torch.randn(p.shape, generator=g)
            u = torch.rand(p.shape, generator=g)
            if name.endswith("A_log"):
                p.copy_((1 + 7 * u).log())
            elif name.endswith("dt_bias"):
                p.copy_(4 * u - 3)
            elif "norm" in name or name.endswith(".D"):
                p.copy_(1 + 0.2 * r)
            else:
                p.copy_(0.4 * r)


def batch():
    ids = torch.tensor([[(5 * i + 3 * b + i * i) % V for i in range(11)] for b in range(2)])
    labels = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)
    labels[0, 3] = -100
    return ids, labels


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    for seed, (name, (config_class, model_class, fields)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        model = model_class(config_class(**fields)).float().eval()
        fill(model, seed)
        folder = OUT / name
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        ids, labels = batch()
        logits = model(ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), labels.reshape(-1))
        loss.backward()
        assert math.isfinite(loss.item())
        # names of the file, which may differ from those of the modules
        by_shape = load_file(folder / "model.safetensors")
        out = {"ids": ids, "labels": labels, "logits": logits.detach(), "loss": loss.detach()[None]}
        for key, p in model.named_parameters():
            stored = key if key in by_shape else key.replace("model.", "backbone.", 1)
            assert torch.equal(by_shape[stored], p.detach()), (name, key)
            out["grad " + stored] = p.grad
        save_file({k: v.contiguous() for k, v in out.items()}, folder / "expected.safetensors")


main()
