"""The other side of the CUDA benchmark: PyTorch, a child of main.lua.

The protocol is that of ours.lua; `open` names a variant, eager or compiled (the function behind
torch.compile), and `version` names torch and its device. Argument: the device; 'cpu' is for trying
the script, and its times are those of the host's clock.
"""
import sys
import time

import torch
import torch.nn.functional as F

DEVICE = sys.argv[1] if len(sys.argv) > 1 else 'cuda'
BF16 = torch.bfloat16


def randn(*shape, dtype=BF16):
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def leaf(*shape, dtype=BF16):
    return randn(*shape, dtype=dtype).requires_grad_()


def ids(n, vocab):
    return torch.randint(0, vocab, (n,), device=DEVICE)


def both(way, leaves, fn):
    """A run of fn and, way 'both', its derivative."""
    if way == 'fwd':
        def forward():
            with torch.no_grad():
                return fn(*leaves)
        return forward
    dy = []

    def run():
        y = fn(*leaves)
        if not dy:
            dy.append(torch.randn_like(y))
        torch.autograd.grad(y, leaves, dy[0])
    return run


def gemm(o, maybe):
    x, w, dy = randn(o['rows'], o['inner']), randn(o['cols'], o['inner']), randn(o['rows'], o['cols'])
    return {'fwd': lambda: F.linear(x, w), 'dx': lambda: dy @ w, 'dw': lambda: dy.t() @ x}[o['way']]


def documents(o):
    """A mask of causal documents of equal length, [seq, seq]."""
    at = torch.arange(o['seq'], device=DEVICE)
    doc = at // (o['seq'] // o['docs'])
    return (doc[:, None] == doc[None]) & (at[:, None] >= at[None])


def varlen(o):
    """Attention over documents laid end to end, where torch has it; else None."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    size = o['seq'] // o['docs']
    cu = torch.arange(0, o['seq'] + 1, size, device=DEVICE, dtype=torch.int32)

    def attend(q, k, v):
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        times = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(times, 1) if times > 1 else x for x in (k, v))
        return varlen_attn(q, k, v, cu, cu, size, size, is_causal=True)
    return attend


def attention(o, maybe):
    q = leaf(o['batch'], o['heads'], o['seq'], o['head'])
    k, v = (leaf(o['batch'], o['kv'], o['seq'], o['head']) for _ in 'kv')
    gqa = o['heads'] != o['kv']
    ways = []
    if o['docs'] > 1:
        by_length = DEVICE == 'cuda' and varlen(o)
        if by_length:
            ways.append(by_length)
        mask = documents(o)
        ways.append(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=gqa))
    else:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def backed(kind):
            def attend(q, k, v):
                with sdpa_kernel(kind):
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
            return attend
        ways = [backed(kind) for kind in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)]
    return fastest([both(o['way'], (q, k, v), way) for way in ways])


def fastest(runs):
    """The quickest of several ways; those that fail are left out."""
    best, least, problem = None, float('inf'), None
    for run in runs:
        try:
            run()
            ms = measure(run, 3)
        except Exception as e:  # this way is not for these operands or this chip
            problem = e
            continue
        if ms < least:
            best, least = run, ms
    if best is None:
        raise problem
    return best


def norm(o, maybe):
    x, w = leaf(o['rows'], o['cols']), leaf(o['cols'])
    size = (o['cols'],)
    if o['kind'] == 'layer':
        return both(o['way'], (x, w, leaf(o['cols'])), maybe(lambda x, w, b: F.layer_norm(x, size, w, b)))
    if o['kind'] == 'rms':
        return both(o['way'], (x, w), maybe(lambda x, w: F.rms_norm(x, size, w)))

    def add(x, r, w):
        s = x + r
        return F.rms_norm(s, size, w), s
    return both(o['way'], (x, leaf(o['rows'], o['cols']), w), maybe(add))


def swiglu(o, maybe):
    leaves = leaf(o['rows'], o['cols']), leaf(o['rows'], o['cols'])
    return both(o['way'], leaves, maybe(lambda g, u: F.silu(g) * u))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def rotation(o, size):
    angle = torch.outer(torch.arange(o['seq'], device=DEVICE).float(),
                        torch.ones(size // 2, device=DEVICE))
    return angle.cos().to(BF16), angle.sin().to(BF16)


def rope(o, maybe):
    x = randn(o['batch'], o['heads'], o['seq'], o['head'])
    cos, sin = rotation(o, o['head'])
    turn = maybe(rotate)
    return lambda: turn(x, cos, sin)


def embedding(o, maybe):
    w, at = leaf(o['vocab'], o['dim']), ids(o['rows'], o['vocab'])
    return both('both', (w,), lambda w: F.embedding(at, w))


def add(o, maybe):
    a, b = randn(o['rows'], o['cols']), randn(o['rows'], o['cols'])
    return lambda: a + b


def copy(o, maybe):
    a, b = randn(o['elements']), randn(o['elements'])
    return lambda: b.copy_(a)


def cast(o, maybe):
    a = randn(o['elements'], dtype=torch.float32)
    return lambda: a.to(BF16)


def cross_entropy(o, maybe):
    x, w, at = leaf(o['rows'], o['dim']), leaf(o['vocab'], o['dim']), ids(o['rows'], o['vocab'])
    loss = maybe(lambda x, w: F.cross_entropy(F.linear(x, w).float(), at))
    return lambda: torch.autograd.grad(loss(x, w), (x, w))


def adamw(o, maybe):
    n = o['elements'] // o['tensors']
    params = [leaf(n, dtype=torch.float32) for _ in range(o['tensors'])]
    for p in params:
        p.grad = torch.randn_like(p)
    optim = torch.optim.AdamW(params, lr=1e-3, fused=True)
    return optim.step


def grad_norm(o, maybe):
    g = randn(o['elements'])
    return lambda: torch.linalg.vector_norm(g, dtype=torch.float32)


def conv1d(o, maybe):
    x, w = randn(1, o['channels'], o['seq']), randn(o['channels'], 1, 4)
    run = maybe(lambda: F.silu(F.conv1d(x, w, padding=3, groups=o['channels'])[..., :o['seq']]))
    return run


class Llama(torch.nn.Module):
    """The decoder of the row, with fused attention and norms of torch."""

    def __init__(self, o):
        super().__init__()
        self.o, size = o, o['dim'] // o['heads']
        wide = o['kv'] * size

        def weight(*shape):
            return torch.nn.Parameter(0.02 * randn(*shape))
        self.embed, self.head = weight(o['vocab'], o['dim']), weight(o['vocab'], o['dim'])
        self.blocks = torch.nn.ModuleList(torch.nn.ParameterDict({
            'q': weight(o['dim'], o['dim']), 'k': weight(wide, o['dim']),
            'v': weight(wide, o['dim']), 'o': weight(o['dim'], o['dim']),
            'gate': weight(o['ffn'], o['dim']), 'up': weight(o['ffn'], o['dim']),
            'down': weight(o['dim'], o['ffn']), 'n1': weight(o['dim']), 'n2': weight(o['dim']),
        }) for _ in range(o['layers']))
        self.last = weight(o['dim'])
        self.cos, self.sin = rotation(o, size)

    def attend(self, x, b):
        o = self.o
        q, k, v = (F.linear(x, b[n]).view(o['batch'], o['seq'], h, -1).transpose(1, 2)
                   for n, h in (('q', o['heads']), ('k', o['kv']), ('v', o['kv'])))
        y = F.scaled_dot_product_attention(rotate(q, self.cos, self.sin),
                                           rotate(k, self.cos, self.sin), v, is_causal=True,
                                           enable_gqa=o['heads'] != o['kv'])
        return F.linear(y.transpose(1, 2).reshape(o['batch'], o['seq'], o['dim']), b['o'])

    def forward(self, at, labels):
        size = (self.o['dim'],)
        x = F.embedding(at, self.embed)
        for b in self.blocks:
            x = x + self.attend(F.rms_norm(x, size, b['n1']), b)
            y = F.rms_norm(x, size, b['n2'])
            x = x + F.linear(F.silu(F.linear(y, b['gate'])) * F.linear(y, b['up']), b['down'])
        logits = F.linear(F.rms_norm(x, size, self.last), self.head)
        return F.cross_entropy(logits.view(-1, self.o['vocab']).float(), labels.view(-1))


def llama(o, maybe):
    model = Llama(o)
    loss, n = maybe(model), o['batch'] * o['seq']
    params = list(model.parameters())
    optim = torch.optim.AdamW(params, lr=1e-4, betas=(0.9, 0.95), fused=True)
    at, labels = (ids(n, o['vocab']).view(o['batch'], o['seq']) for _ in range(2))

    def step():
        loss(at, labels).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optim.step()
        optim.zero_grad()
    step()
    return step


def measure(run, n):
    """Milliseconds of n runs."""
    if DEVICE != 'cuda':
        start = time.perf_counter()
        for _ in range(n):
            run()
        return 1e3 * (time.perf_counter() - start)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(n):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


CASES = {f.__name__: f for f in (gemm, attention, norm, swiglu, rope, embedding, add, copy, cast,
                                 cross_entropy, adamw, grad_norm, conv1d, llama)}


def open_case(words):
    o = dict(w.split('=') for w in words[1:])
    variant = o.pop('variant', 'eager')
    o = {k: int(v) if v.isdigit() else v for k, v in o.items()}
    torch.manual_seed(1)
    maybe = torch.compile if variant == 'compiled' else lambda fn: fn
    run = CASES[words[0]](o, maybe)
    run()
    return run


def version():
    if DEVICE == 'cuda' and not torch.cuda.is_available():
        return 'error torch %s sees no GPU' % torch.__version__
    name = torch.cuda.get_device_name() if DEVICE == 'cuda' else 'the host'
    return 'torch %s on %s' % (torch.__version__, name)


def main():
    run = None
    for line in sys.stdin:
        words = line.split()
        try:
            answer = 'ok'
            if words[0] == 'open':
                run = None
                run = open_case(words[1:])
            elif words[0] == 'time':
                answer = '%.9g' % measure(run, int(words[1]))
            elif words[0] == 'close':
                run = None
                torch._dynamo.reset()
                if DEVICE == 'cuda':
                    torch.cuda.empty_cache()
            elif words[0] == 'version':
                answer = version()
        except Exception as e:
            answer = 'error ' + ' '.join(str(e).split())[:200]
        print(answer, flush=True)


if __name__ == '__main__':
    main()
