"""The loss that balances experts, of the `transformers` package, for models of folders.py.

    python spec/golden/balance.py > spec/golden/balance.lua      # from the root of the tree

Of each model, in doubles, without a mask and with padding at the end of the second row: the loss
(mean over counted labels, and COEF times the term), the term, and the gradients of the routers in
order of layers: their norms, and SAMPLES numbers of each at equal distances.
"""
import torch
import transformers as T

from common import doubles_only, inputs
from folders import CASES, V, build

COEF, SAMPLES, PADDING = 0.5, 5, 4
NAMES = ["mixtral", "olmoe", "qwen3_moe", "qwen3_moe_step", "qwen2_moe",
         "gpt_oss"]


ROUTERS = ("mlp.gate.weight", "mlp.router.weight")


def numbers(values):
    return "{ " + ", ".join(f"{v:.8g}" for v in values) + " }"


def term_of(logits, k, mask):
    """The term of logits [tokens, E] of all layers, as load_balancing_loss_func has it."""
    chosen, probs, tokens = 0, 0, 0
    for one in logits:
        p = one.softmax(-1)
        hot = torch.nn.functional.one_hot(p.topk(k, dim=-1).indices, p.shape[-1]).sum(1)
        chosen = chosen + (hot * mask.reshape(-1, 1)).sum(0)
        probs = probs + (p * mask.reshape(-1, 1)).sum(0)
        tokens = tokens + mask.sum()
    return (chosen / tokens * (probs / tokens)).sum() * logits[0].shape[-1]


def row(kind, extra, padded):
    model = build(kind, dict(extra, output_router_logits=True, router_aux_loss_coef=COEF))
    ids, labels = inputs(V)
    mask = torch.ones_like(ids)
    if padded:
        mask[1, -PADDING:] = 0
        labels = labels.masked_fill(mask == 0, -100)
    seen = []
    for m in model.modules():
        if type(m).__name__.lower().endswith("topkrouter"):
            m.register_forward_hook(lambda m, args, out: seen.append(out[0]))
    # its function for masked tokens takes no doubles
    out = model(ids, attention_mask=mask if padded else None, output_router_logits=not padded)
    term = term_of(seen, model.config.num_experts_per_tok, mask)
    assert padded or abs(float(term - out.aux_loss)) < 1e-7
    loss = torch.nn.functional.cross_entropy(out.logits.reshape(-1, V), labels.reshape(-1))
    loss = loss + COEF * term
    loss.backward()
    grads = [p.grad.flatten() for n, p in model.named_parameters() if n.endswith(ROUTERS)]
    norms = numbers(float(g.norm()) for g in grads)
    samples = ",\n         ".join(numbers(g[:: g.numel() // SAMPLES][:SAMPLES].tolist())
                                  for g in grads)
    return (f"{{ loss = {loss.item():.15g}, term = {term.item():.15g},\n"
            f"      norms = {norms},\n      samples = {{ {samples} }} }}")


doubles_only()
print(f"-- Written by spec/golden/balance.py with transformers {T.__version__}.\n\n"
      f"return {{\n   coef = {COEF}, padding = {PADDING}, count = {SAMPLES},")
for name, kind, extra in CASES:
    if name in NAMES:
        print(f"   {name} = {{\n      whole = {row(kind, extra, False)},\n"
              f"      padded = {row(kind, extra, True)},\n   }},")
print("}")
