"""What several golden scripts share: weights and ids of tiny models, computing in doubles, samples of
gradients, numbers that the specs make again, and how they are printed. Scripts of this folder import
it by its name.
"""
import textwrap


class Numbers:
    """Numbers that f32 holds exactly, of many sizes."""

    def __init__(self, seed):
        self.state = seed

    def integer(self):
        self.state = (self.state * 16807 + 11) % 2147483647
        return self.state

    def take(self, n):
        import numpy
        list_ = []
        for _ in range(n):
            share = self.integer() // 2048 / 2 ** 19 - 1
            list_.append(share * 2.0 ** -(self.integer() // 4096 % 12))
        return numpy.array(list_)


def doubles_only():
    """Lets transformers compute in doubles where it asks for float32: norms, softmax, positions."""
    import torch
    to, softmax = torch.Tensor.to, torch.nn.functional.softmax

    def wide(v):
        return torch.float64 if v is torch.float32 else v

    torch.Tensor.to = lambda t, *a, **k: to(t, *map(wide, a), **{n: wide(v) for n, v in k.items()})
    torch.Tensor.float = torch.Tensor.double
    of_tensor, kind = torch.Tensor.softmax, torch.Tensor.type
    torch.Tensor.type = lambda t, *a, **k: kind(t, *map(wide, a), **k)
    torch.Tensor.softmax = lambda t, *a, **k: of_tensor(t, *a, **{n: wide(v) for n, v in k.items()})
    torch.nn.functional.softmax = lambda *a, **k: softmax(*a, **{n: wide(v) for n, v in k.items()})
    torch.set_default_dtype(torch.float64)


def as_f32(t):
    """A copy in f32, also where doubles_only holds."""
    import torch
    return torch.from_numpy(t.detach().numpy().astype("float32"))


def places(row, numel, count):
    """Places of samples of parameter `row` (from 0): a Lehmer generator, which doubles hold."""
    state, list_ = row + 1, []
    for _ in range(count):
        state = state * 16807 % 2147483647
        list_.append(state % numel)
    return list_


def samples(row, grad, count):
    """The largest magnitude of a gradient and `count` of its numbers, in f32."""
    import torch
    flat = grad.detach().reshape(-1)
    return as_f32(torch.cat([flat.abs().max()[None], flat[places(row, flat.numel(), count)]]))


def parameters_of(model):
    """The parameters by name, without the output head that shares the embedding."""
    tied = model.config.tie_word_embeddings
    return {n: p for n, p in model.named_parameters() if not (tied and n.startswith("lm_head"))}


def fill(named, centre=1):
    """Fills parameters with sines, by the place of the name in sorted order; norms around `centre`,
    those of gated delta nets around 1."""
    import torch
    with torch.no_grad():
        for k, name in enumerate(sorted(named)):
            p = named[name]
            t = (torch.arange(p.numel(), dtype=torch.float64) * 0.7 + 1.3 * k).sin() * 0.3
            if "norm" in name or ".ln_" in name:
                t = t / 3 + (1 if "linear_attn.norm" in name else centre)
            p.copy_(t.reshape(p.shape))


def inputs(vocab):
    """Ids [2, 9] below `vocab` and their labels, of which two do not count."""
    import torch
    ids, labels = [], []
    for b in range(2):
        row = [(7 * i + 3 * b + i * i) % vocab for i in range(9)]
        shifted = row[1:] + [-100]
        if b == 0:
            shifted[2] = -100
        ids.append(row)
        labels.append(shifted)
    return torch.tensor(ids), torch.tensor(labels)


def wrapped(text):
    """A text in lines of the width of a golden file."""
    return "\n".join(textwrap.wrap(text, 94, break_long_words=False, break_on_hyphens=False))


def show(name, values, form):
    """Prints a list as the field `name` of a Lua table."""
    print(f"   {name} = {{")
    line = "     "
    for x in values:
        text = f" {form(x)},"
        if len(line) + len(text) > 100:
            print(line)
            line = "     "
        line += text
    print(line + "\n   },")
