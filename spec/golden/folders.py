"""Configurations that the `transformers` package writes, with what their models compute.

    python spec/golden/folders.py            # from the root of the tree

Weights are sines by the place of the parameter's name in sorted order (see common.py), so that no
weights are stored. Computed in doubles and written for each variant: to folders.lua config.json as
save_pretrained leaves it and the loss (mean over counted labels), to folders.safetensors all logits
and, a row for each parameter in the order of their names, the largest gradient and SAMPLES of them
at random places (places in common.py).

    luajit spec/golden/folders_write.lua DIR && python spec/golden/folders.py DIR

loads the folders that tide writes of the same models and prints the largest difference of logits;
with trained_write.lua in place of folders_write.lua, of models trained on a mesh.
"""
import json
import pathlib
import sys

import torch
import transformers as T
from safetensors.torch import save_file

from common import as_f32, doubles_only, fill, inputs, parameters_of, samples, wrapped

V = 23
SAMPLES = 32
BASE = dict(vocab_size=V, hidden_size=24, intermediate_size=20, num_hidden_layers=3,
            num_attention_heads=6, num_key_value_heads=2, head_dim=4, rms_norm_eps=1e-5,
            max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
FULL, SLIDING = "full_attention", "sliding_attention"
YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16)
LONG = dict(rope_type="longrope", rope_theta=500.0, short_factor=[1.0, 1.5],
            long_factor=[2.0, 3.0])
BAMBA = dict(head_dim=None, hidden_size=48, mamba_n_heads=12, mamba_d_head=8, mamba_n_groups=2,
             mamba_d_state=5, mamba_chunk_size=4)
LINEAR = "linear_attention"
GRANITE = dict(BAMBA, mamba_chunk_size=4, shared_intermediate_size=14, embedding_multiplier=3.0,
               logits_scaling=2.0, residual_multiplier=0.4, attention_multiplier=0.3)
MLA = dict(head_dim=None, num_key_value_heads=6, q_lora_rank=14, kv_lora_rank=10,
           qk_nope_head_dim=2, qk_rope_head_dim=4, v_head_dim=5)
NEMOTRON = dict(ssm_state_size=5, mamba_num_heads=8, mamba_head_dim=6, n_groups=2, chunk_size=4,
                moe_intermediate_size=10, moe_shared_expert_intermediate_size=14,
                num_hidden_layers=None, rms_norm_eps=None)
DELTA = dict(head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
             linear_value_head_dim=5)
CASES = [
    ("llama", "Llama", dict(rope_parameters=dict(rope_type="default", rope_theta=500.0))),
    ("llama_mqa_bias", "Llama", dict(num_key_value_heads=1, attention_bias=True, mlp_bias=True,
                                     tie_word_embeddings=True)),
    ("llama_linear", "Llama", dict(
        rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=2.0))),
    ("llama_dynamic", "Llama", dict(max_position_embeddings=4, rope_parameters=dict(
        rope_type="dynamic", rope_theta=500.0, factor=2.0))),
    ("llama_dynamic_short", "Llama", dict(rope_parameters=dict(
        rope_type="dynamic", rope_theta=500.0, factor=2.0))),
    ("llama_yarn", "Llama", dict(rope_parameters=YARN)),
    ("llama_yarn_mscale", "Llama", dict(rope_parameters=dict(
        YARN, mscale=1.5, mscale_all_dim=0.7, beta_fast=4.0, beta_slow=0.5, truncate=False))),
    ("llama_longrope", "Llama", dict(rope_parameters=dict(
        LONG, original_max_position_embeddings=6, factor=4.0))),
    ("llama_llama3", "Llama", dict(rope_parameters=dict(
        rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=32))),
    ("mistral", "Mistral", dict(sliding_window=3)),
    ("mistral_full", "Mistral", dict(sliding_window=None, tie_word_embeddings=True)),
    ("ministral", "Ministral", dict(sliding_window=3, layer_types=[SLIDING, FULL, SLIDING])),
    ("qwen2", "Qwen2", dict(use_sliding_window=True, sliding_window=3, max_window_layers=1,
                            head_dim=None)),
    ("qwen3", "Qwen3", dict(tie_word_embeddings=True, head_dim=6)),
    ("qwen3_bias", "Qwen3", dict(attention_bias=True, num_key_value_heads=6)),
    ("phi3", "Phi3", dict(head_dim=None, sliding_window=4)),
    ("phi4_partial", "Phi3", dict(head_dim=None, hidden_size=48, tie_word_embeddings=True,
        original_max_position_embeddings=6, rope_parameters=dict(
            LONG, partial_rotary_factor=0.5, original_max_position_embeddings=6))),
    ("phi4_short", "Phi3", dict(head_dim=None, hidden_size=48, max_position_embeddings=48,
        original_max_position_embeddings=16, rope_parameters=dict(
            LONG, partial_rotary_factor=0.5, original_max_position_embeddings=16))),
    ("gemma2", "Gemma2", dict(sliding_window=3, query_pre_attn_scalar=9,
                              attn_logit_softcapping=2.0, final_logit_softcapping=1.5)),
    ("gemma2_uncapped", "Gemma2", dict(
        sliding_window=3, attn_logit_softcapping=None, final_logit_softcapping=None,
        layer_types=[FULL, SLIDING, SLIDING], num_key_value_heads=1)),
    ("gemma3", "Gemma3Text", dict(sliding_window=3, query_pre_attn_scalar=9,
                                  layer_types=[FULL, SLIDING, FULL])),
    ("granite", "Granite", dict(embedding_multiplier=3.0, logits_scaling=2.0, head_dim=None,
                                residual_multiplier=0.4, attention_multiplier=0.3)),
    ("granite_tied", "Granite", dict(embedding_multiplier=2.0, tie_word_embeddings=True,
                                     attention_bias=True, mlp_bias=True, head_dim=None)),
    ("olmo2", "Olmo2", dict(head_dim=None)),
    ("olmo2_mqa", "Olmo2", dict(num_key_value_heads=1, attention_bias=True, head_dim=None,
                                tie_word_embeddings=True)),
    ("smollm3", "SmolLM3", dict(no_rope_layer_interval=2, head_dim=None)),
    ("smollm3_sliding", "SmolLM3", dict(
        no_rope_layers=[0, 1, 1], use_sliding_window=True, sliding_window=3, head_dim=None,
        layer_types=[FULL, SLIDING, SLIDING], tie_word_embeddings=False)),
    ("mixtral", "Mixtral", dict(num_local_experts=4)),
    ("mixtral_window", "Mixtral", dict(num_local_experts=3, num_experts_per_tok=1, sliding_window=3,
                                       tie_word_embeddings=True)),
    ("olmoe", "Olmoe", dict(head_dim=None, num_experts=5, num_experts_per_tok=3)),
    ("qwen3_moe", "Qwen3Moe", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12,
                                   norm_topk_prob=True, mlp_only_layers=[1])),
    ("qwen3_moe_step", "Qwen3Moe", dict(num_experts=3, num_experts_per_tok=3, head_dim=6,
                                        moe_intermediate_size=10, decoder_sparse_step=2)),
    ("qwen2_moe", "Qwen2Moe", dict(
        head_dim=None, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12,
        shared_expert_intermediate_size=16, use_sliding_window=True, sliding_window=3,
        max_window_layers=2)),
    ("qwen2_moe_step", "Qwen2Moe", dict(
        head_dim=None, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=10,
        shared_expert_intermediate_size=9, norm_topk_prob=True, mlp_only_layers=[0],
        qkv_bias=False, tie_word_embeddings=True)),
    ("glm4_moe", "Glm4Moe", dict(
        n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=10, n_group=4,
        topk_group=2, routed_scaling_factor=1.5, use_qk_norm=True, attention_bias=True)),
    ("glm4_moe_plain", "Glm4Moe", dict(
        n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=12, n_shared_experts=2,
        first_k_dense_replace=0, norm_topk_prob=False, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=1.0))),
    ("gpt_oss", "GptOss", dict(
        num_local_experts=4, num_experts_per_tok=2, sliding_window=3, swiglu_limit=0.2,
        rope_parameters=dict(YARN, beta_fast=4.0, beta_slow=0.5, truncate=False))),
    ("gpt_oss_plain", "GptOss", dict(
        num_local_experts=5, num_experts_per_tok=3, sliding_window=4, num_key_value_heads=1,
        layer_types=[FULL, SLIDING, FULL], attention_bias=False, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=500.0))),
    ("deepseek_v3", "DeepseekV3", dict(
        MLA, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=10, n_group=4,
        topk_group=2, first_k_dense_replace=1, rope_parameters=dict(
            YARN, mscale=1.0, mscale_all_dim=1.0))),
    ("deepseek_v3_plain", "DeepseekV3", dict(
        MLA, q_lora_rank=None, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        moe_intermediate_size=12, n_shared_experts=2, first_k_dense_replace=0, attention_bias=True,
        rope_interleave=False, tie_word_embeddings=True, norm_topk_prob=False)),
    ("deepseek_v2", "DeepseekV2", dict(
        MLA, q_lora_rank=None, n_routed_experts=5, num_experts_per_tok=2, moe_intermediate_size=10,
        first_k_dense_replace=1, routed_scaling_factor=1.5, rope_parameters=dict(
            YARN, mscale=0.7, mscale_all_dim=0.9))),
    ("deepseek_v2_groups", "DeepseekV2", dict(
        MLA, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=10, n_group=3,
        topk_group=2, topk_method="group_limited_greedy", n_shared_experts=1)),
    ("glm4_moe_lite", "Glm4MoeLite", dict(
        MLA, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=10,
        mlp_layer_types=["sparse", "dense", "sparse"])),
    ("bamba", "Bamba", dict(BAMBA, attn_layer_indices=[1])),
    ("bamba_bias", "Bamba", dict(
        BAMBA, attn_layer_indices=[0, 2], mamba_n_groups=1, mamba_proj_bias=True,
        mamba_conv_bias=False, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
        time_step_limit=[0.05, 0.6])),
    ("granitemoehybrid", "GraniteMoeHybrid", dict(
        GRANITE, num_local_experts=6, num_experts_per_tok=2, layer_types=[LINEAR, FULL, LINEAR])),
    ("granitemoehybrid_dense", "GraniteMoeHybrid", dict(
        GRANITE, num_local_experts=0, layer_types=[FULL, LINEAR, FULL], mamba_proj_bias=True,
        attention_bias=True, mamba_conv_bias=False, position_embedding_type="rope",
        tie_word_embeddings=True, time_step_limit=[0.05, 0.6])),
    ("nemotron_moe", "NemotronH", dict(
        NEMOTRON, layers_block_type=[LINEAR, "moe", FULL], n_routed_experts=6,
        num_experts_per_tok=2, routed_scaling_factor=1.5)),
    ("nemotron_moe_latent", "NemotronH", dict(
        NEMOTRON, layers_block_type=["moe", LINEAR, FULL, "moe"], n_routed_experts=6,
        num_experts_per_tok=3, n_group=3, topk_group=2, norm_topk_prob=False, moe_latent_size=7,
        mlp_hidden_act="silu")),
    ("nemotron_moe_bias", "NemotronH", dict(
        NEMOTRON, layers_block_type=[FULL, "moe", "mlp"], n_routed_experts=4,
        num_experts_per_tok=2, mlp_bias=True)),
    ("qwen3_next", "Qwen3Next", dict(
        DELTA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12,
        shared_expert_intermediate_size=16, layer_types=[LINEAR, FULL, LINEAR])),
    ("qwen3_next_step", "Qwen3Next", dict(
        DELTA, linear_num_value_heads=2, linear_conv_kernel_dim=3, num_experts=5,
        num_experts_per_tok=3, moe_intermediate_size=10, shared_expert_intermediate_size=9,
        norm_topk_prob=False, mlp_only_layers=[0], decoder_sparse_step=2, attention_bias=True,
        full_attention_interval=2, tie_word_embeddings=True,
        rope_parameters=dict(YARN, partial_rotary_factor=0.5))),
    ("qwen3_5", "Qwen3_5Text", dict(DELTA, layer_types=[LINEAR, FULL, LINEAR])),
    ("qwen3_5_moe", "Qwen3_5MoeText", dict(
        DELTA, intermediate_size=None, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=12, shared_expert_intermediate_size=10, attention_bias=True,
        layer_types=[FULL, LINEAR, LINEAR], tie_word_embeddings=True, rope_parameters=dict(
            rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5,
            mrope_interleaved=True, mrope_section=[1, 1, 0]))),
    ("gpt2", "GPT2", dict(n_embd=24, n_layer=3, n_head=6, n_positions=16)),
    ("gpt2_untied", "GPT2", dict(n_embd=24, n_layer=2, n_head=4, n_positions=12, n_inner=20,
                                 tie_word_embeddings=False, activation_function="relu",
                                 scale_attn_by_inverse_layer_idx=True)),
]
CENTRE = {"Gemma2": 0, "Gemma3Text": 0, "Qwen3Next": 0, "Qwen3_5Text": 0,
          "Qwen3_5MoeText": 0}
MODELS = {"Gemma3Text": "Gemma3ForCausalLM", "GPT2": "GPT2LMHeadModel",
          "Qwen3_5Text": "Qwen3_5ForCausalLM", "Qwen3_5MoeText": "Qwen3_5MoeForCausalLM"}


# Fields of BASE that a case leaves out by None.
NONE = ("head_dim", "num_hidden_layers", "rms_norm_eps", "intermediate_size")

# What files of a kind call the experts of a layer and their projections; others as Qwen3Moe.
USUAL = ("mlp", "gate_proj", "up_proj", "down_proj")
EXPERTS = {"Mixtral": ("block_sparse_moe", "w1", "w3", "w2")}


# What files of Granite call the tensors with all experts of a layer.
WHOLE = {"router.weight": "router.layer.weight", "experts.gate_up_proj": "input_linear.weight",
         "experts.down_proj": "output_linear.weight"}


def parts(name, p, kind):
    """Yields the name in files, and the part of a parameter or gradient p, of each tensor of a file."""
    moe, _, whole = name.partition(".block_sparse_moe.")
    if whole and kind == "GraniteMoeHybrid":
        yield f"{moe}.block_sparse_moe.{WHOLE[whole]}", p
        return
    if kind == "NemotronH":
        name = name.replace("model.", "backbone.", 1)
        layer, _, field = name.partition(".experts.")
        if field:
            for e, one in enumerate(p):
                yield f"{layer}.experts.{e}.{field}.weight", one
        else:
            yield name, p
        return
    layer, _, rest = name.partition(".mlp.")
    block, gate, up, down = EXPERTS.get(kind, USUAL)
    if kind == "GptOss":
        yield name, p
    elif rest == "gate.weight":
        yield f"{layer}.{block}.{rest}", p
    elif rest.startswith("experts."):
        for e, one in enumerate(p):
            at = f"{layer}.{block}.experts.{e}."
            if rest == "experts.down_proj":
                yield f"{at}{down}.weight", one
            else:
                half = one.shape[0] // 2
                yield f"{at}{gate}.weight", one[:half]
                yield f"{at}{up}.weight", one[half:]
    else:
        yield name, p


def stored(model, kind, of):
    """The tensors of(p) of all parameters p by their names in files."""
    return {file: part for n, p in parameters_of(model).items()
            for file, part in parts(n, of(p), kind)}


def check_gap(p, k):
    """Raises if the k-th largest number of a row and the one after it are near."""
    p = p.sort(-1, descending=True).values
    if k < p.shape[-1]:
        gap = float((p[:, k - 1] - p[:, k]).detach().min())
        assert gap > 1e-4, gap


def check_routes(model):
    """Raises if rounding in f32 could choose other experts."""
    def look(module, args, out):
        bias = getattr(module, "e_score_correction_bias", None)
        groups = getattr(module, "num_group", None) or 1
        p = out[0].softmax(-1) if bias is None else out[0].sigmoid() + bias
        if groups > 1:
            each = p.view(p.shape[0], groups, -1)
            best = each.topk(1 if bias is None else 2, dim=-1)[0].sum(-1)
            check_gap(best, module.topk_group)
            kept = torch.zeros_like(best).scatter_(1, best.topk(module.topk_group)[1], 1)
            p = each.masked_fill(kept[..., None] == 0, float("-inf")).reshape(p.shape)
        check_gap(p, module.top_k)
    for m in model.modules():
        if type(m).__name__.lower().endswith("topkrouter"):
            m.register_forward_hook(look)


def build(kind, extra):
    """The model of a case, in doubles, filled."""
    fields = {**BASE, **extra}
    if kind == "GPT2":
        fields = {k: v for k, v in fields.items() if k in extra or "token_id" in k}
        fields.update(vocab_size=V, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)
    fields = {k: v for k, v in fields.items() if v is not None or k not in NONE}
    config = getattr(T, kind + "Config")(**fields)
    config._attn_implementation = config._experts_implementation = "eager"
    torch.manual_seed(0)
    cls = getattr(T, MODELS.get(kind, kind + "ForCausalLM"))
    model = cls(config).double().eval()
    config.architectures = [cls.__name__]
    model.get_input_embeddings().padding_idx = None
    fill(stored(model, kind, lambda p: p.detach()), CENTRE.get(kind, 1))
    fill({n: b for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")})
    check_routes(model)
    return model


def run(name, kind, extra, out, numbers):
    model = build(kind, extra)
    config = model.config
    ids, labels = inputs(V)
    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), labels.reshape(-1))
    loss.backward()
    text = wrapped(json.dumps(json.loads(config.to_json_string())))
    out.write(f"   {name} = {{\n      config = [==[\n{text}]==],\n"
              f"      loss = {loss.item():.15g},\n   }},\n")
    numbers[name + ".logits"] = as_f32(logits).contiguous()
    grads = stored(model, kind, lambda p: p.grad)
    numbers[name + ".grads"] = torch.stack(
        [samples(row, grads[n].contiguous(), SAMPLES) for row, n in enumerate(sorted(grads))])


def check(folder):
    ids, _ = inputs(V)
    for sub in sorted(p for p in pathlib.Path(folder).iterdir() if (p / "logits.txt").exists()):
        model = T.AutoModelForCausalLM.from_pretrained(
            sub, attn_implementation="eager", experts_implementation="eager",
            dtype=torch.float32).eval()
        got = model(ids % model.config.vocab_size, use_cache=False).logits.detach().double()
        want = torch.tensor([float(v) for v in (sub / "logits.txt").read_text().split()],
                            dtype=torch.float64).reshape(got.shape)
        off = float((got - want).abs().max() / want.abs().max())
        print(f"{sub.name:24s} {off:.3g}", "" if off < 2e-5 else "DIFFERENT")


if __name__ != "__main__":
    pass
elif len(sys.argv) > 1:
    T.logging.set_verbosity_error()
    check(sys.argv[1])
else:
    doubles_only()
    numbers = {}
    with open("spec/golden/folders.lua", "w") as out:
        out.write("-- Written by spec/golden/folders.py: configurations and losses of the "
                  f"transformers package,\n-- version {T.__version__}.\n\nreturn {{\n")
        for case in CASES:
            run(*case, out, numbers)
        out.write("}\n")
    save_file(numbers, "spec/golden/folders.safetensors")
