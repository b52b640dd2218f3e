"""Fully sharded training over two processes with PyTorch: `fully_shard` over Gloo on the CPU, one
thread each, eager. The peer of fsdp.lua: same model, weights, rows, optimiser.

    python kernels/bench/peer_fsdp.py WEIGHTS.safetensors CONFIG.json

Each line "N" on standard input runs N steps and answers with the median seconds of a step and the
loss of each. Process 0 starts process 1 and tells it what to do by a broadcast, so that it waits
without using a core.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from peer import read_tensors

RANKS = 2


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        dim, hidden, self.heads = c['hidden_size'], c['intermediate_size'], c['num_attention_heads']
        def linear(n, m):
            return nn.Linear(n, m, bias=False)
        self.input_layernorm = nn.RMSNorm(dim, eps=c['rms_norm_eps'])
        self.self_attn = nn.ModuleDict({n: linear(dim, dim)
                                        for n in ('q_proj', 'k_proj', 'v_proj', 'o_proj')})
        self.post_attention_layernorm = nn.RMSNorm(dim, eps=c['rms_norm_eps'])
        self.mlp = nn.ModuleDict({'gate_proj': linear(dim, hidden), 'up_proj': linear(dim, hidden),
                                  'down_proj': linear(hidden, dim)})

    def forward(self, x, cos, sin):
        a, m, (b, t, c) = self.self_attn, self.mlp, x.shape
        h = self.input_layernorm(x)
        q, k, v = (a[n](h).view(b, t, self.heads, -1).transpose(1, 2)
                   for n in ('q_proj', 'k_proj', 'v_proj'))
        y = F.scaled_dot_product_attention(rope(q, cos, sin), rope(k, cos, sin), v, is_causal=True)
        x = x + a['o_proj'](y.transpose(1, 2).reshape(b, t, c))
        h = self.post_attention_layernorm(x)
        return x + m['down_proj'](F.silu(m['gate_proj'](h)) * m['up_proj'](h))


def rope(x, cos, sin):
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat([-two, one], -1) * sin


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.model = nn.ModuleDict({
            'embed_tokens': nn.Embedding(c['vocab_size'], c['hidden_size']),
            'layers': nn.ModuleList(Block(c) for _ in range(c['num_hidden_layers'])),
            'norm': nn.RMSNorm(c['hidden_size'], eps=c['rms_norm_eps'])})
        self.lm_head = nn.Linear(c['hidden_size'], c['vocab_size'], bias=False)
        d = c['hidden_size'] // c['num_attention_heads']
        f = c['rope_theta'] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = torch.outer(torch.arange(c['seq'], dtype=torch.float64), f).repeat(1, 2)
        self.cos, self.sin = angle.cos().float(), angle.sin().float()

    def forward(self, ids, labels):
        x = self.model['embed_tokens'](ids)
        for layer in self.model['layers']:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.lm_head(self.model['norm'](x)).flatten(0, 1), labels.flatten())


def token(at):
    return at * 7919 % 4093


def rows(c, rank):
    """As rows_of in fsdp.lua."""
    n = c['batch'] // RANKS
    at = torch.arange(rank * n * c['seq'], (rank + 1) * n * c['seq']).view(n, c['seq'])
    return token(at), token(at + 1)


def build(weights, c):
    model = Model(c)
    model.load_state_dict(read_tensors(weights))
    mesh = init_device_mesh('cpu', (RANKS,))
    for layer in model.model['layers']:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    groups = [{'params': [p for p in model.parameters() if p.ndim > 1], 'weight_decay': 0.1},
              {'params': [p for p in model.parameters() if p.ndim < 2], 'weight_decay': 0.0}]
    return model, torch.optim.AdamW(groups, lr=c['lr'], betas=(0.9, 0.95), eps=1e-8, fused=True)


def step(model, optim, ids, labels):
    loss = model(ids, labels)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optim.step()
    optim.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / RANKS


def command(rank):
    """The number of steps to run, from rank 0's standard input; 0 at its end."""
    n = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        line = sys.stdin.readline()
        n[0] = int(line) if line.strip() else 0
    dist.broadcast(n, 0)
    return n.item()


def main(weights, config, rank, meeting):
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method='file://' + meeting, rank=rank, world_size=RANKS)
    with open(config) as f:
        c = json.load(f)
    model, optim = build(weights, c)
    data = rows(c, rank)
    while n := command(rank):
        times, losses = [], []
        for _ in range(n):
            dist.barrier()
            begin = time.perf_counter()
            losses.append(step(model, optim, *data))
            times.append(time.perf_counter() - begin)
        if rank == 0:
            times.sort()
            print(times[(len(times) - 1) // 2], *losses, flush=True)
    dist.destroy_process_group()


if __name__ == '__main__':
    if len(sys.argv) == 5:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        with tempfile.TemporaryDirectory() as folder:
            place = os.path.join(folder, 'meeting')
            other = subprocess.Popen([sys.executable, *sys.argv, '1', place],
                                     stdin=subprocess.DEVNULL)
            try:
                main(sys.argv[1], sys.argv[2], 0, place)
            except BaseException:
                other.kill()
                raise
            sys.exit(other.wait())
