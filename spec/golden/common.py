"""What several golden scripts share: computing in doubles, samples of gradients, and numbers that
the specs make again. Scripts of this folder import it by its name.
"""


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
    torch.nn.functional.softmax = lambda *a, **k: softmax(*a, **{n: wide(v) for n, v in k.items()})
    torch.set_default_dtype(torch.float64)


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
    return torch.cat([flat.abs().max()[None],
                      flat[places(row, flat.numel(), count)]]).type(torch.float32)
