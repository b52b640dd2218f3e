"""Numbers of small decoders of several families, from the `transformers` package.

    python spec/golden/decoders.py > spec/golden/decoders.lua

Weights are sines by the place of the parameter's name in sorted order (norm weights near 1, or near
0 where one is added to them), so that nothing but names and formulas is shared with the tests.
Written for each family: configuration, loss (mean over counted labels), three logits, and the norm
of some gradients, all computed in doubles.
"""
import math

import torch
import transformers as T

from common import fill, inputs, parameters_of

V = 23
BASE = dict(
    vocab_size=V, hidden_size=24, intermediate_size=20, num_hidden_layers=3,
    num_attention_heads=6, num_key_value_heads=2, head_dim=6, rms_norm_eps=1e-5,
    max_position_embeddings=64, attn_implementation="eager", pad_token_id=0)
WINDOW = ["full_attention", "sliding_attention", "full_attention"]
CASES = [
    ("qwen2", T.Qwen2Config, T.Qwen2ForCausalLM,
     dict(head_dim=4, tie_word_embeddings=False, use_sliding_window=True, sliding_window=3,
          max_window_layers=2, layer_types=["full_attention"] * 2 + ["sliding_attention"])),
    ("qwen3", T.Qwen3Config, T.Qwen3ForCausalLM,
     dict(tie_word_embeddings=True, use_sliding_window=False)),
    ("mistral", T.MistralConfig, T.MistralForCausalLM,
     dict(tie_word_embeddings=False, sliding_window=3)),
    ("phi3", T.Phi3Config, T.Phi3ForCausalLM,
     dict(head_dim=4, tie_word_embeddings=False, sliding_window=None)),
    ("gemma3", T.Gemma3TextConfig, T.Gemma3ForCausalLM,
     dict(tie_word_embeddings=True, sliding_window=3, query_pre_attn_scalar=9,
          layer_types=WINDOW)),
]
OURS = {
    "qwen2": "head_dim = 4, use_sliding_window = true, sliding_window = 3,"
             "\n         max_window_layers = 2",
    "qwen3": "tie_word_embeddings = true",
    "mistral": "sliding_window = 3",
    "phi3": "head_dim = 4",
    "gemma3": "sliding_window = 3, query_pre_attn_scalar = 9, layer_types = { 'full_attention',"
              "\n         'sliding_attention', 'full_attention' }",
}


def run(family, config_class, model_class, extra):
    torch.manual_seed(0)
    config = config_class(**{**BASE, **extra})
    model = model_class(config).double().eval()
    model.model.embed_tokens.padding_idx = None
    names = parameters_of(model)
    fill(names, 0 if family == "gemma3" else 1)
    ids, labels = inputs(V)
    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, V), labels.reshape(-1))
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.norm()) ** 2 for p in names.values()))
    print(f"   {family} = {{")
    print(f"      config = {{ {OURS[family]} }},")
    print(f"      loss = {loss.item():.15g}, norm = {norm:.15g},")
    picked = [logits[0, 0, 0], logits[1, 8, 22], logits[0, 4, 11]]
    print("      logits = { " + ", ".join(f"{v.item():.15g}" for v in picked) + " },")
    print("      grads = {")
    for name in sorted(n for n in names if ".1." in n or ".layers." not in n):
        print(f"         ['{name}'] = {float(names[name].grad.norm()):.15g},")
    print("      },")
    print("   },")


print("-- Written by spec/golden/decoders.py: numbers of the transformers package, "
      f"version {T.__version__}.")
print()
print("return {")
for case in CASES:
    run(*case)
print("}")
