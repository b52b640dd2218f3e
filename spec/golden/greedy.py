"""What `generate(do_sample=False)` of the `transformers` package says, with and without a cache.

    python spec/golden/greedy.py > spec/golden/greedy.lua

The models are those of folders.py (configurations, and sines for weights) and the folders of
backbones.py, in doubles, so that ids alone are stored. The prompt is longer than every sliding
window. `ids` are 12 new ones (fewer where the model has fewer positions), `whole` those without a
cache where that changes them, `penalised` those with a repetition penalty, without a cache.
"""
import contextlib
import io
import pathlib
import sys

import torch
import transformers as T

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.argv = sys.argv[:1]
with contextlib.redirect_stdout(io.StringIO()):
    import folders

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
NEW = 12
PENALTY = 1.5


def greedy(model, cached, penalty=1.0):
    new = min(NEW, getattr(model.config, "n_positions", 64) - len(PROMPT))
    ids = torch.tensor([PROMPT])
    model.generation_config.eos_token_id = None
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                         max_new_tokens=new, use_cache=cached, pad_token_id=0,
                         repetition_penalty=penalty)
    return out[0, len(PROMPT):].tolist()


def show(name, model):
    whole, penalised = greedy(model, False), greedy(model, False, PENALTY)
    try:
        fields = dict(ids=greedy(model, True), whole=whole, penalised=penalised)
    except ValueError:                  # caches of Mamba layers alone: version 5.23 fails there
        fields = dict(ids=whole, penalised=penalised)
    if fields.get("whole") == fields["ids"]:
        del fields["whole"]
    print(f"   {name} = {{\n" + "".join(
        f"      {key} = {{ " + ", ".join(map(str, ids)) + " },\n" for key, ids in fields.items())
          + "   },")


def main():
    T.logging.set_verbosity_error()
    print("-- Written by spec/golden/greedy.py: ids that transformers, version "
          f"{T.__version__}, generates.\n\nreturn {{")
    print("   prompt = { " + ", ".join(map(str, PROMPT)) + f" }}, penalty = {PENALTY},")
    for name, kind, extra in folders.CASES:
        show(name, folders.build(kind, extra))
    for folder in sorted(pathlib.Path("spec/golden/backbone").iterdir()):
        show(folder.name, T.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager").double().eval())
    print("}")


main()
