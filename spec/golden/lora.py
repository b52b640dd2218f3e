"""What the `peft` package computes with adapters on models of the `transformers` package.

    python spec/golden/lora.py > spec/golden/lora.lua

Weights are sines by the place of the parameter's name in sorted order (see common.py), those of
the base first, then those of the adapters by themselves. Written for each variant: config.json, the
options of the adapters, the loss, three logits, and the norms of the gradients of the adapters in
the order of their names, all computed in doubles.
"""
import json

import peft
import torch
import transformers as T

from common import fill, inputs, parameters_of, wrapped

V = 23
BASE = dict(vocab_size=V, hidden_size=24, intermediate_size=20, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=2, head_dim=4, rms_norm_eps=1e-5,
            max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
CASES = [
    ("llama_some", "Llama", dict(), dict(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"])),
    ("llama_all", "Llama", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
     dict(r=3, lora_alpha=8, target_modules="all-linear", use_rslora=True)),
    ("qwen3_all", "Qwen3", dict(head_dim=6), dict(r=2, lora_alpha=3, target_modules="all-linear")),
    ("llama_dora", "Llama", dict(attention_bias=True, mlp_bias=True),
     dict(r=3, lora_alpha=4, target_modules=["k_proj", "down_proj"], use_dora=True)),
    ("bamba_mixer", "Bamba", dict(head_dim=None, hidden_size=48, mamba_n_heads=12, mamba_d_head=8,
                                  mamba_n_groups=2, mamba_d_state=5, mamba_chunk_size=4,
                                  attn_layer_indices=[1]),
     dict(r=3, lora_alpha=6, target_modules=["in_proj", "v_proj"])),
    ("granitemoehybrid_mlp", "GraniteMoeHybrid", dict(
        head_dim=None, hidden_size=48, mamba_n_heads=12, mamba_d_head=8, mamba_n_groups=2,
        mamba_d_state=5, mamba_chunk_size=4, layer_types=["mamba", "attention"],
        num_local_experts=0, shared_intermediate_size=14, residual_multiplier=0.4,
        attention_multiplier=0.3), dict(r=3, lora_alpha=6, target_modules=["input_linear",
        "output_linear", "out_proj"])),
]


def run(name, kind, extra, options):
    fields = {**BASE, **extra}
    if fields["head_dim"] is None:
        del fields["head_dim"]
    config = getattr(T, kind + "Config")(**fields)
    config._attn_implementation = "eager"
    cls = getattr(T, kind + "ForCausalLM")
    base = cls(config).double().eval()
    base.get_input_embeddings().padding_idx = None
    fill(parameters_of(base))
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **options)).double()
    short = {n.replace("base_model.model.", "").replace(".default.weight", "")
             .replace("lora_magnitude_vector", "lora_m"): p
             for n, p in model.named_parameters() if p.requires_grad}
    fill(short)
    with torch.no_grad():
        for n, p in short.items():
            if n.endswith("lora_m"):       # kept as the difference to the norms of the base
                layer = model.get_submodule("base_model.model." + n[:-len(".lora_m")])
                p += layer.base_layer.weight.norm(dim=1)
    ids, labels = inputs(V)
    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), labels.reshape(-1))
    loss.backward()
    config.architectures = [cls.__name__]
    targets = options["target_modules"]
    print(f"   {name} = {{")
    print("      config = [==[\n" + wrapped(json.dumps(json.loads(config.to_json_string())))
          + "]==],")
    print(f"      rank = {options['r']}, alpha = {options['lora_alpha']}, rslora = "
          + str(options.get("use_rslora", False)).lower() + ", dora = "
          + str(options.get("use_dora", False)).lower() + ",\n      targets = '"
          + (targets if isinstance(targets, str) else "|".join(targets)) + "',")
    print(f"      loss = {loss.item():.15g},")
    picked = [logits[0, 0, 0], logits[1, 8, 22], logits[0, 4, 11]]
    print("      logits = { " + ", ".join(f"{v.item():.15g}" for v in picked) + " },")
    norms = ", ".join(f"{float(short[n].grad.norm()):.10g}" for n in sorted(short))
    print("      grads = {\n" + wrapped(norms) + "\n      },\n   },")


print(f"-- Written by spec/golden/lora.py: numbers of the peft package, version {peft.__version__},"
      f"\n-- on models of transformers {T.__version__}.\n\nreturn {{")
for case in CASES:
    run(*case)
print("}")
