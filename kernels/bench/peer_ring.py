"""Causal ring attention over two processes with PyTorch: its CPU flash attention for the blocks,
Gloo point to point for the ring, head-tail layout, final log-sum-exp in backward. The peer of
ring.lua: same shape, same two cores.

    python kernels/bench/peer_ring.py [rounds [tokens [f32|bf16]]]
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HEADS, DIM = 4, 64
attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
attend_back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def swap(tensors, other):
    """Sends tensors to the other rank; returns what will arrive, and the requests."""
    coming = [torch.empty(t.shape, dtype=t.dtype) for t in tensors]
    ops = [dist.P2POp(dist.isend, t.contiguous(), other) for t in tensors]
    ops += [dist.P2POp(dist.irecv, t, other) for t in coming]
    return coming, dist.batch_isend_irecv(ops)


def wait(requests):
    for request in requests:
        request.wait()


def merge(out, lse, part, part_lse):
    both = torch.logaddexp(lse, part_lse)
    out.mul_(torch.exp(lse - both).unsqueeze(-1))
    out.add_(part * torch.exp(part_lse - both).unsqueeze(-1))
    lse.copy_(both)


def forward(q, k, v, rank):
    half = q.size(2) // 2
    coming, requests = swap([k, v], 1 - rank)
    out, lse = attend(q, k, v, 0.0, True)
    out = out.float().clone()
    wait(requests)
    k2, v2 = coming
    if rank == 1:                       # rank 0's early half is before all of this rank's queries
        part, part_lse = attend(q, k2[:, :, :half], v2[:, :, :half], 0.0, False)
        merge(out, lse, part, part_lse)
    else:                               # all of rank 1's keys are before this rank's late half
        part, part_lse = attend(q[:, :, half:], k2, v2, 0.0, False)
        merge(out[:, :, half:], lse[:, :, half:], part, part_lse)
    return out.to(q.dtype), lse, k2, v2


def backward(grad, q, k, v, out, lse, rank):
    half = q.size(2) // 2
    coming, requests = swap([k, v], 1 - rank)
    dq, dk, dv = attend_back(grad, q, k, v, out, lse, 0.0, True)
    wait(requests)
    k2, v2 = coming
    if rank == 1:
        a, b, c = attend_back(grad, q, k2[:, :, :half].contiguous(), v2[:, :, :half].contiguous(),
                              out, lse, 0.0, False)
        dq += a
        pad = torch.zeros_like(b)
        b, c = torch.cat([b, pad], 2), torch.cat([c, pad], 2)
    else:
        late = [t[:, :, half:].contiguous() for t in (grad, q, out, lse)]
        a, b, c = attend_back(late[0], late[1], k2, v2, late[2], late[3], 0.0, False)
        dq[:, :, half:] += a
    home, requests = swap([b, c], 1 - rank)
    wait(requests)
    dk += home[0]
    dv += home[1]
    return dq, dk, dv


def check(rank):
    """The ring against one call on a small case."""
    n = 64
    torch.manual_seed(0)
    full = [torch.randn(1, HEADS, n, DIM) for _ in range(4)]
    q = n // 4
    mine = torch.cat([torch.arange(rank * q, rank * q + q),
                      torch.arange((3 - rank) * q, (3 - rank) * q + q)])
    x = [t.clone().requires_grad_() for t in full[:3]]
    want = torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True)
    want.backward(full[3])
    part = [t[:, :, mine].contiguous() for t in full]
    out, lse, _, _ = forward(*part[:3], rank)
    got = backward(part[3], *part[:3], out, lse, rank)
    pairs = [(out, want)] + list(zip(got, [t.grad for t in x]))
    for a, b in pairs:
        assert torch.allclose(a, b.detach()[:, :, mine], atol=1e-4), 'the ring is wrong'


def worker(rank, rounds, tokens, dtype):
    os.environ.setdefault('MASTER_ADDR', '127.0.0.1')
    os.environ.setdefault('MASTER_PORT', '29531')
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group('gloo', rank=rank, world_size=2)
    check(rank)
    q, k, v, grad = [torch.randn(1, HEADS, tokens // 2, DIM).to(dtype) for _ in range(4)]
    wall, cpu = [], []
    for i in range(rounds + 1):
        dist.barrier()
        begin, begin_cpu = time.perf_counter(), time.process_time()
        out, lse, _, _ = forward(q, k, v, rank)
        backward(grad, q, k, v, out, lse, rank)
        dist.barrier()
        used = torch.tensor([time.process_time() - begin_cpu])
        dist.all_reduce(used)
        if i > 0:
            wall.append(time.perf_counter() - begin)
            cpu.append(used.item())
    if rank == 0:
        print(f'PyTorch ring over 2 ranks, {tokens} tokens, {HEADS} heads of {DIM}, '
              f'{dtype}: '
              f'{statistics.median(wall):.3f} s (cpu {statistics.median(cpu):.3f})')
    dist.destroy_process_group()


if __name__ == '__main__':
    dtype = torch.bfloat16 if 'bf16' in sys.argv else torch.float32
    numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
    rounds = numbers[0] if numbers else 5
    tokens = numbers[1] if len(numbers) > 1 else 8192
    mp.spawn(worker, (rounds, tokens, dtype), nprocs=2)
