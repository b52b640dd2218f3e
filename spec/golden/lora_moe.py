"""What the `peft` package computes and stores with adapters of experts on models of the
`transformers` package.

    python spec/golden/lora_moe.py      (writes lora_moe.lua and lora_moe.safetensors beside it)

The bases are made of random numbers, and so are the adapters. The tensors, in f32:

    BASE.base.NAME        the base, as transformers saves it; Qwen3-MoE's: base.NAME
    CASE.given.NAME       an adapter folder that peft reads (without it: one that peft has made)
    CASE.kept.NAME        the folder that peft saves of it
    CASE.logits           the logits
    CASE.grad.NAME        the gradients of the adapters for the loss sum(logits * sin), by the names
                          of `kept`

lua: config.json of the bases, and of each case adapter_config.json of both folders, and its base.
Cases with `halves` have adapters of gate_up_proj whose B is block-diagonal, as tide writes them.
"""
import json
import os
import tempfile
import warnings

import peft
import safetensors.torch as st
import torch
import transformers as T

warnings.simplefilter("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))
CONFIG = dict(vocab_size=23, hidden_size=12, intermediate_size=10, moe_intermediate_size=8,
              num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=4,
              num_experts=3, num_experts_per_tok=2, norm_topk_prob=True, rms_norm_eps=1e-5,
              max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
SMALL = {k: CONFIG[k] for k in ("vocab_size", "hidden_size", "num_attention_heads",
                                "num_key_value_heads", "max_position_embeddings", "pad_token_id",
                                "bos_token_id", "eos_token_id")}
BASES = {
    "qwen3_moe": ("Qwen3Moe", CONFIG),
    "gpt_oss": ("GptOss", dict(
        SMALL, num_hidden_layers=2, intermediate_size=8, head_dim=4, num_local_experts=3,
        num_experts_per_tok=2, sliding_window=4, rope_parameters=dict(
            rope_type="default", rope_theta=1e4),
        layer_types=["sliding_attention", "full_attention"])),
    "granite": ("GraniteMoeHybrid", dict(
        SMALL, num_hidden_layers=2, intermediate_size=8, shared_intermediate_size=4,
        num_local_experts=3, num_experts_per_tok=2, layer_types=["mamba", "attention"],
        mamba_n_heads=4, mamba_d_head=6, mamba_d_state=4, mamba_n_groups=1)),
    "nemotron": ("NemotronH", dict(
        SMALL, layers_block_type=["mamba", "moe", "attention", "moe"], head_dim=4,
        intermediate_size=8, moe_intermediate_size=8, moe_shared_expert_intermediate_size=4,
        n_routed_experts=4, num_experts_per_tok=2, moe_latent_size=8, mamba_num_heads=4,
        mamba_head_dim=6, ssm_state_size=4, n_groups=1, n_group=1, topk_group=1)),
}
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
JOINT = r".*\.gate_up_proj"
IDS = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]]
PREFIX = "base_model.model.model.layers."


def drawn(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.4


def apart(rank):
    """An adapter as files of transformers 4 have it: one for each projection of each expert."""
    list_, (C, I, E) = {}, (CONFIG["hidden_size"], CONFIG["moe_intermediate_size"], 3)
    for layer in range(2):
        for e in range(E):
            for k, (name, i, o) in enumerate((("gate_proj", C, I), ("up_proj", C, I),
                                              ("down_proj", I, C))):
                at = f"{PREFIX}{layer}.mlp.experts.{e}.{name}"
                seed = 100 * layer + 10 * e + 2 * k
                list_[at + ".lora_A.weight"] = drawn((rank, i), seed)
                list_[at + ".lora_B.weight"] = drawn((o, rank), seed + 1)
    return list_


CASES = {
    "apart": dict(r=2, lora_alpha=3, target_modules=["gate_proj", "up_proj", "down_proj"]),
    "all": dict(r=2, lora_alpha=4, target_modules="all-linear"),
    "rslora": dict(r=1, lora_alpha=3, target_modules="all-linear", use_rslora=True),
    "shared": dict(r=2, lora_alpha=5, target_modules=["q_proj"],
                   target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    "down": dict(r=3, lora_alpha=4, target_modules=[], target_parameters=["experts.down_proj"]),
    "oss": dict(base="gpt_oss", halves=2, r=2, lora_alpha=3, target_modules=["q_proj"],
                rank_pattern={JOINT: 4}, alpha_pattern={JOINT: 6},
                target_parameters=["router.weight"] + EXPERTS),
    "oss_joint": dict(base="gpt_oss", r=2, lora_alpha=3, target_modules=[],
                      target_parameters=EXPERTS),
    "granite": dict(base="granite", halves=1, r=2, lora_alpha=3, target_modules=["input_linear"],
                    rank_pattern={JOINT: 4}, alpha_pattern={JOINT: 6},
                    target_parameters=["router.weight"] + EXPERTS),
    "nemotron": dict(base="nemotron", r=2, lora_alpha=3, target_modules=["shared_experts.up_proj"],
                     target_parameters=["gate.weight", "experts.up_proj", "experts.down_proj"]),
    "square": dict(base="nemotron", r=2, lora_alpha=3, target_modules=["layers.2.mixer.q_proj"],
                   target_parameters=["layers.1.mixer.experts.up_proj",
                                      "layers.3.mixer.experts.down_proj"]),
}


def divide(name, p, halves):
    """Zeros in B of gate_up_proj for each half of the rank: its rows are those of gate before those
    of up (halves = 1), or the two in turns (2)."""
    if not halves or "base_layer.lora_B" not in name:
        return
    b = p.reshape(p.shape[0], 4, -1)                        # [2 I, rank, experts]
    rows = torch.arange(b.shape[0])
    up = rows % 2 == 1 if halves == 2 else rows >= b.shape[0] // 2
    b[~up, 2:] = 0
    b[up, :2] = 0


def run(base, name, options, tensors, dir_):
    options = {k: v for k, v in options.items() if k != "base"}
    halves = options.pop("halves", None)
    options = peft.LoraConfig(task_type="CAUSAL_LM", **options)
    given = None
    if name == "apart":
        os.makedirs(dir_ + "/given")
        options.save_pretrained(dir_ + "/given")
        st.save_file(apart(options.r), dir_ + "/given/adapter_model.safetensors")
        given = json.load(open(dir_ + "/given/adapter_config.json"))
        model = peft.PeftModel.from_pretrained(base, dir_ + "/given", is_trainable=True)
        for n, t in apart(options.r).items():
            tensors[f"{name}.given.{n}"] = t
    else:
        model = peft.get_peft_model(base, options)
        with torch.no_grad():
            for k, (n, p) in enumerate(model.named_parameters()):
                if "lora_" in n:
                    p.copy_(drawn(p.shape, k))
                    divide(n, p, halves)
    model.eval()
    logits = model(torch.tensor(IDS)).logits
    weights = torch.sin(torch.arange(logits.numel(), dtype=torch.float32)).reshape(logits.shape)
    (logits * weights).sum().backward()
    model.save_pretrained(dir_ + "/kept")
    for n, t in st.load_file(dir_ + "/kept/adapter_model.safetensors").items():
        tensors[f"{name}.kept.{n}"] = t
    for n, p in model.named_parameters():
        if p.requires_grad and base.config.model_type == "qwen3_moe":
            tensors[f"{name}.grad.{n.replace('.default', '')}"] = p.grad
    tensors[name + ".logits"] = logits.detach()
    kept = json.load(open(dir_ + "/kept/adapter_config.json"))
    return given, kept


def text(c):
    keep = ("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora",
            "bias", "fan_in_fan_out", "rank_pattern", "alpha_pattern")
    short = {k: c[k] for k in keep}
    for k in ("target_modules", "target_parameters"):       # peft keeps sets, in any order
        short[k] = sorted(c[k]) if isinstance(c[k], list) else c[k]
    return json.dumps(short).replace(', "', ',\n"')


def make_base(name, tensors, dir_):
    """Writes a base, adds its tensors, and returns its config.json as a field for Lua."""
    kind, config = BASES[name]
    model = getattr(T, kind + "ForCausalLM")(getattr(T, kind + "Config")(**config)).eval()
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(drawn(p.shape, 1000 + k))
    model.save_pretrained(dir_)
    before = "base." if name == "qwen3_moe" else name + ".base."
    for n, t in st.load_file(dir_ + "/model.safetensors").items():
        tensors[before + n] = t
    config = json.load(open(dir_ + "/config.json"))
    return f"   {name} = [==[\n" + json.dumps(config).replace(', "', ',\n"') + "]==],"


def main():
    tensors = {}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as dir_:
        lines = [f"-- Written by spec/golden/lora_moe.py: folders of peft {peft.__version__} on "
                 f"models of\n-- transformers {T.__version__}.\n\nreturn {{\n   config = {{"]
        for name in BASES:
            lines.append(make_base(name, tensors, f"{dir_}/{name}-base"))
        lines.append("   },")
        for name, options in CASES.items():
            base = options.get("base", "qwen3_moe")
            model = T.AutoModelForCausalLM.from_pretrained(
                f"{dir_}/{base}-base", dtype=torch.float32, attn_implementation="eager")
            given, kept = run(model, name, options, tensors, f"{dir_}/{name}")
            lines.append(f"   {name} = {{\n      base = '{base}',")
            if given:
                lines.append("      given = [==[\n" + text(given) + "]==],")
            lines.append("      kept = [==[\n" + text(kept) + "]==],\n   },")
    with open(HERE + "/lora_moe.lua", "w") as f:
        f.write("\n".join(lines) + "\n}\n")
    path = HERE + "/lora_moe.safetensors"
    st.save_file({k: t.contiguous() for k, t in tensors.items()}, path)
    os.chmod(path, 0o644)


main()
