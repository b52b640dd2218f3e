"""The peer's side of the benchmark: PyTorch, as fast as it goes; a child of run.lua.

The protocol is that of ours.lua, with two differences: `open` may name a variant, and `load PATH`
reads the inputs that our side has written. Float tensors of the file keep their dtype. A variant
"compiled", or "X+compiled", is eager X with its forward behind torch.compile.
"""
import json
import struct
import sys
import time

import torch
import torch.nn.functional as F


def peak():
    """Resident bytes and the peak since the last call."""
    resident = top = 0
    with open('/proc/self/status') as f:
        for line in f:
            if line.startswith('VmRSS:'):
                resident = int(line.split()[1]) * 1024
            if line.startswith('VmHWM:'):
                top = int(line.split()[1]) * 1024
    try:
        with open('/proc/self/clear_refs', 'w') as f:
            f.write('5')
    except OSError:
        pass
    return resident, top


DTYPES = {'F32': torch.float32, 'BF16': torch.bfloat16, 'F64': torch.float64,
          'I64': torch.int64, 'I32': torch.int32}


def read_tensors(path):
    """A safetensors file, one tensor at a time (a map of the file would count as memory)."""
    out = {}
    with open(path, 'rb') as f:
        size, = struct.unpack('<Q', f.read(8))
        header = json.loads(f.read(size))
        header.pop('__metadata__', None)
        for name, info in header.items():
            start, stop = info['data_offsets']
            t = torch.empty(info['shape'], dtype=DTYPES[info['dtype']])
            f.seek(8 + size + start)
            got = f.readinto(memoryview(t.view(-1).view(torch.uint8).numpy()))
            assert got == stop - start, name
            out[name] = t
    return out


def size_of(x):
    return x.detach().float().square().mean().sqrt().item()


class Case:
    """Inputs by name; run() is timed, check() gives the numbers to compare."""

    wants = ()

    def __init__(self, options):
        self.o = options

    def load(self, inputs):
        self.i = inputs
        for name in self.wants:
            inputs[name].requires_grad_()

    def forward(self):
        raise NotImplementedError

    def once(self):
        y = self.forward()
        if 'dy' in self.i:
            y.backward(self.i['dy'])
        else:
            y.backward()
        return y

    def drop(self):
        for name in self.wants:
            self.i[name].grad = None

    def compile(self):
        self.forward = torch.compile(self.forward, dynamic=False)

    def run(self):
        self.once()
        self.drop()

    def check(self):
        out = [size_of(self.once())] + [size_of(self.i[name].grad) for name in self.wants]
        self.drop()
        return out


class LinearLoss(Case):
    wants = ('x', 'w')

    def forward(self):
        i = self.i
        if self.o['variant'] == 'chunked':
            return F.linear_cross_entropy(i['x'], i['w'], i['labels'],
                                          options=torch.nn.LinearCrossEntropyOptions())
        logits = F.linear(i['x'], i['w'])
        return F.cross_entropy(logits.float(), i['labels'])


class CrossEntropy(Case):
    wants = ('x',)

    def forward(self):
        return F.cross_entropy(self.i['x'], self.i['labels'])


class RMSNorm(Case):
    wants = ('x', 'w')

    def forward(self):
        x, w = self.i['x'], self.i['w']
        return F.rms_norm(x, w.shape, w, 1e-5)


class SwiGLU(Case):
    wants = ('g', 'u')

    def forward(self):
        return F.silu(self.i['g']) * self.i['u']


class Attention(Case):
    """Inputs are [batch, token, head, size], as ours; the transposed views cost nothing."""

    def load(self, inputs):
        self.wants = ('q', 'k', 'v') if self.o['train'] else ()
        super().load(inputs)

    def forward(self):
        q, k, v = (self.i[name].transpose(1, 2) for name in 'qkv')
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    def run(self):
        if self.o['train']:
            super().run()
        else:
            with torch.no_grad():
                self.forward()

    def check(self):
        if self.o['train']:
            return super().check()
        with torch.no_grad():
            return [size_of(self.forward())]


def segsum(a):
    """Sums of a over (s, t], -inf above the diagonal, without differences of large sums."""
    q = a.size(-1)
    ones = torch.ones(q, q, dtype=torch.bool)
    sums = a[..., None].expand(*a.shape, q).masked_fill(~torch.tril(ones, -1), 0).cumsum(-2)
    return sums.masked_fill(~torch.tril(ones), -torch.inf)


def ssd(x, step, A, B, C, chunk):
    """The chunked scan of arXiv 2405.21060, section 6, one group: x [b, t, h, p], step [b, t, h], B
    and C [b, t, n]. Exponents in f32, products in the dtype of x and contracted in pairs, which is
    several times faster here than einsum over all operands at once."""
    cut = lambda v: v.unflatten(1, (-1, chunk))
    a = cut(step.float() * A).permute(0, 3, 1, 2)                        # b h c l
    u, B, C = cut(x * step.to(x.dtype)[..., None]), cut(B), cut(C)
    u = u.permute(0, 3, 1, 2, 4)                                         # b h c l p
    sums = a.cumsum(-1)
    S = (C @ B.mT)[:, None] * segsum(a).exp().to(x.dtype)                # b h c l s
    y = S @ u
    late = u * (sums[..., -1:] - sums).exp().to(x.dtype)[..., None]
    states = late.mT @ B[:, None]                                        # b h c p n
    states = torch.cat([torch.zeros_like(states[:, :, :1]), states], 2)
    between = segsum(F.pad(sums[..., -1], (1, 0))).exp()[:, :, :-1].to(x.dtype)
    states = (between @ states.flatten(3)).unflatten(3, states.shape[3:])
    y = y + (C[:, None] @ states.mT) * sums.exp().to(x.dtype)[..., None]
    return y.permute(0, 2, 3, 1, 4).flatten(1, 2)


class SSD(Case):
    wants = ('x', 'dt', 'A', 'B', 'C', 'D')

    def forward(self):
        i = self.i
        y = ssd(i['x'], F.softplus(i['dt'].float()), i['A'], i['B'][:, :, 0], i['C'][:, :, 0],
                self.o['chunk'])
        return y + i['x'] * i['D'].to(y.dtype)[:, None]


class GatedDelta(Case):
    """The chunked rule of transformers' Qwen3-Next."""
    wants = ('q', 'k', 'v', 'g', 'beta')

    def load(self, inputs):
        from transformers.models.qwen3_next import modeling_qwen3_next as qwen
        self.rule = qwen.torch_chunk_gated_delta_rule
        super().load(inputs)

    def forward(self):
        i = self.i
        return self.rule(i['q'], i['k'], i['v'], i['g'], i['beta'],
                         use_qk_l2norm_in_kernel=True)[0]


def conv_silu(x, w, b):
    k = w.shape[-1]
    y = F.conv1d(x.mT, w.view(-1, 1, k), b, padding=k - 1, groups=w.shape[0])
    return F.silu(y[..., :x.shape[1]].mT)


class Conv1d(Case):
    wants = ('x', 'w', 'b')

    def forward(self):
        return conv_silu(self.i['x'], self.i['w'], self.i['b'])


class Mamba2(Case):
    def load(self, inputs):
        self.wants = sorted(name for name in inputs if name != 'dy')
        super().load(inputs)

    def forward(self):
        o, i = self.o, self.i
        inner, n = o['heads'] * o['size'], o['state']
        z, v, dt = F.linear(i['x'], i['in_proj.weight']).split(
            [inner, inner + 2 * n, o['heads']], -1)
        v = conv_silu(v, i['conv1d.weight'], i['conv1d.bias'])
        x, B, C = v.split([inner, n, n], -1)
        x = x.unflatten(-1, (o['heads'], o['size']))
        step = F.softplus(dt.float() + i['dt_bias'].float())
        y = ssd(x, step, -i['A_log'].float().exp(), B, C, o['chunk'])
        y = (y + x * i['D'].to(y.dtype)[:, None]).flatten(2)
        y = F.rms_norm(y * F.silu(z), (inner,), i['norm.weight'], 1e-5)
        return F.linear(y, i['out_proj.weight'])


class AdamW(Case):
    def load(self, inputs):
        super().load(inputs)
        self.p = [inputs['p%d' % (k + 1)].requires_grad_() for k in range(self.o['tensors'])]
        for k, p in enumerate(self.p):
            p.grad = inputs['g%d' % (k + 1)]
        self.optim = torch.optim.AdamW(self.p, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1,
                                       fused=True)

    def run(self):
        self.optim.step()

    def check(self):
        self.run()
        return [size_of(self.p[0]), self.p[0].sum().item()]


class Op(Case):
    def load(self, inputs):
        self.wants = () if self.o.get('plain') else ('x',)
        super().load(inputs)

    def forward(self):
        z = self.i['x'] + self.i['y']
        for _ in range(self.o['count'] - 1):
            z = z + self.i['y']
        return z

    def run(self):
        z = self.forward()
        if self.o['train']:
            z.sum().backward()
            self.drop()

    def check(self):
        return [size_of(self.forward())]


class Llama(Case):
    """Parameters under the names of published checkpoints. Variants for bf16: master (parameters
    in bf16, f32 copies in the optimiser, as ours) and autocast (parameters in f32)."""

    def load(self, inputs):
        o = self.o
        self.ids = inputs.pop('ids').view(o['batch'], o['seq'])
        self.labels = inputs.pop('labels')
        self.auto = o['variant'] == 'autocast'
        if self.auto:
            inputs = {name: t.float() for name, t in inputs.items()}
        self.i = {name: t.requires_grad_() for name, t in inputs.items()}
        self.params = list(self.i.values())
        self.master = None
        if self.params[0].dtype != torch.float32:
            self.master = [p.detach().float() for p in self.params]
        self.optim = torch.optim.AdamW(self.master or self.params, lr=1e-4, betas=(0.9, 0.95),
                                       weight_decay=0.1, fused=True)
        self.rotation()

    def rotation(self):
        size = self.o['dim'] // self.o['heads']
        freq = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angle = torch.outer(torch.arange(self.o['seq'], dtype=torch.float64), freq)
        dtype = torch.bfloat16 if self.o['dtype'] == 'bf16' else torch.float32
        self.cos, self.sin = angle.cos().to(dtype), angle.sin().to(dtype)

    def rotate(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1)

    def attention(self, x, at):
        o, i = self.o, self.i
        q, k, v = (F.linear(x, i['%s.self_attn.%s_proj.weight' % (at, name)])
                   .view(o['batch'], o['seq'], o['heads'], -1).transpose(1, 2) for name in 'qkv')
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        y = y.transpose(1, 2).reshape(o['batch'], o['seq'], o['dim'])
        return F.linear(y, i[at + '.self_attn.o_proj.weight'])

    def mlp(self, x, at):
        i = self.i
        gate = F.linear(x, i[at + '.mlp.gate_proj.weight'])
        up = F.linear(x, i[at + '.mlp.up_proj.weight'])
        return F.linear(F.silu(gate) * up, i[at + '.mlp.down_proj.weight'])

    def norm(self, x, name):
        return F.rms_norm(x, (self.o['dim'],), self.i[name + '.weight'], 1e-5)

    def loss(self):
        x = F.embedding(self.ids, self.i['model.embed_tokens.weight'])
        for n in range(self.o['layers']):
            at = 'model.layers.%d' % n
            x = x + self.attention(self.norm(x, at + '.input_layernorm'), at)
            x = x + self.mlp(self.norm(x, at + '.post_attention_layernorm'), at)
        return self.head(self.norm(x, 'model.norm'))

    def head(self, x):
        logits = F.linear(x, self.i['lm_head.weight'])
        return F.cross_entropy(logits.view(-1, self.o['vocab']).float(), self.labels)

    def compile(self):
        self.loss = torch.compile(self.loss, dynamic=False)

    def run(self):
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=self.auto):
            loss = self.loss()
        loss.backward()
        if self.master is None:
            norm = torch.nn.utils.clip_grad_norm_(self.params, 1.0, foreach=True)
            self.optim.step()
        else:
            for m, p in zip(self.master, self.params):
                m.grad = p.grad.float()
            norm = torch.nn.utils.clip_grad_norm_(self.master, 1.0, foreach=True)
            self.optim.step()
            with torch.no_grad():
                torch._foreach_copy_(self.params, self.master)
        for p in self.params:
            p.grad = None
        return loss.item(), norm.item()

    def check(self):
        return [value for _ in range(3) for value in self.run()]


class Decode(Case):
    """transformers: generate() with its own cache, or compiled with a cache of fixed size."""

    def load(self, inputs):
        from transformers import LlamaConfig, LlamaForCausalLM
        o = self.o
        ids = inputs.pop('ids')
        self.ids, self.prompt = ids[None], ids[None, :o['prompt']]
        self.model = LlamaForCausalLM(LlamaConfig(
            vocab_size=o['vocab'], hidden_size=o['dim'], num_hidden_layers=o['layers'],
            num_attention_heads=o['heads'], intermediate_size=o['ffn'], rms_norm_eps=1e-5,
            bos_token_id=None, eos_token_id=None, pad_token_id=0)).eval()
        self.model.load_state_dict(inputs, assign=True)
        self.how = {'do_sample': False, 'max_new_tokens': o['tokens']}

    def compile(self):
        self.model.forward = torch.compile(self.model.forward, dynamic=False)
        self.how['cache_implementation'] = 'static'

    def run(self):
        with torch.inference_mode():
            got = self.model.generate(self.prompt, attention_mask=torch.ones_like(self.prompt),
                                      **self.how)
        assert got.shape[1] == self.o['prompt'] + self.o['tokens']

    def check(self):
        from transformers import DynamicCache
        sizes, cache, start = [], DynamicCache(config=self.model.config), 0
        forward = type(self.model).forward
        with torch.inference_mode():
            for i in range(9):
                n = 1 if i else self.o['prompt']
                y = forward(self.model, self.ids[:, start:start + n], past_key_values=cache,
                            use_cache=True)
                sizes.append(size_of(y.logits[:, -1]))
                start += n
        return sizes


class Tokenizer(Case):
    """Hugging Face's tokenizers. Variants: fast (encode_batch_fast of all texts, without offsets)
    and single (encode of one after the other). Both on one thread."""

    def load(self, inputs):
        import os
        os.environ['TOKENIZERS_PARALLELISM'] = 'false'
        from tokenizers import Tokenizer as Peer
        self.tok = Peer.from_str(bytes(inputs['file'].to(torch.uint8).numpy()).decode())
        raw, size, at = bytes(inputs['text'].to(torch.uint8).numpy()), self.o['size'], 0
        self.texts = []
        while at < len(raw):
            last = raw.find(b'\n', min(len(raw) - 1, at + size - 1))
            last = len(raw) if last < 0 else last + 1
            self.texts.append(raw[at:last].decode())
            at = last

    def run(self):
        if self.o['variant'] == 'fast':
            got = self.tok.encode_batch_fast(self.texts, add_special_tokens=False)
            self.ids = [e.ids for e in got]
        else:
            self.ids = [self.tok.encode(t, add_special_tokens=False).ids for t in self.texts]

    def check(self):
        total = sum(i * (k % 97) for ids in self.ids for k, i in enumerate(ids, 1))
        return [sum(map(len, self.ids)), total % 1000003]


CASES = {'llama': Llama, 'attention': Attention, 'linear_loss': LinearLoss,
         'decode': Decode, 'cross_entropy': CrossEntropy, 'rms_norm': RMSNorm, 'swiglu': SwiGLU,
         'adamw': AdamW, 'op': Op, 'ssd': SSD, 'tokenizer': Tokenizer, 'mamba2': Mamba2,
         'conv1d': Conv1d, 'gated_delta': GatedDelta}


def case_of(name):
    if name in CASES:
        return CASES[name]
    from peer_moe import CASES as experts
    from peer_sft import CASES as others
    return {**others, **experts}[name]


class Loop:
    def open(self, rest):
        name, *pairs = rest.split()
        options = dict(pair.split('=') for pair in pairs)
        options = {k: int(v) if v.isdigit() else v for k, v in options.items()}
        way = options.get('variant', '').split('+')
        self.compiled = way[-1] == 'compiled'
        options['variant'] = way[0]
        torch.set_num_threads(options.get('threads', 1))
        torch.set_flush_denormal(True)
        self.case = case_of(name)(options)
        return 'ok'

    def load(self, path):
        self.case.load(read_tensors(path))
        if self.compiled:
            self.case.compile()
        return 'ok'

    def check(self, _):
        return ' '.join('%.9g' % value for value in self.case.check())

    def run(self, n):
        run = self.case.run
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(n)):
            run()
        return '%.9g %.9g' % (time.perf_counter() - start, time.process_time() - cpu)

    def memory(self, _):
        return '%d %d' % peak()

    def version(self, _):
        return 'PyTorch %s, %s' % (torch.__version__, torch.backends.cpu.get_cpu_capability())


def main():
    loop = Loop()
    for line in iter(sys.stdin.readline, ''):
        verb, _, rest = line.strip().partition(' ')
        try:
            answer = getattr(loop, verb)(rest)
        except Exception as e:  # the driver decides what a failure means
            answer = 'error %s: %s' % (type(e).__name__, str(e).replace('\n', ' '))
        print(answer, flush=True)


if __name__ == '__main__':
    main()
