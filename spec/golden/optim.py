"""Parameters after five updates by Lion, Adafactor and Muon, from PyTorch in doubles.

    python spec/golden/optim.py > spec/golden/optim.lua

Adafactor and Muon are torch.optim's; Newton-Schulz runs in doubles, not in bf16. Lion is its formula. Vectors do not decay; Muon leaves them to AdamW.
"""
import inspect

import torch
import torch.optim._muon as muon

X = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)
LR, DECAY = 0.05, 0.1


def parameters():
    def made(list_, *shape):
        return list_.reshape(shape).requires_grad_(True)
    return (made(torch.arange(6, dtype=torch.float64).sin(), 2, 3),
            made(torch.arange(12, dtype=torch.float64).cos(), 3, 4),
            made(torch.arange(4, dtype=torch.float64).cos(), 4))


def run(make):
    w, u, b = parameters()
    optimizers = make([w, u], [b])
    for _ in range(5):
        for p in (w, u, b):
            p.grad = None
        ((X @ w @ u + b - 1) ** 2).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in (w, u, b)]).tolist()


class Lion:
    def __init__(self, groups):
        self.rows = [(p, decay, torch.zeros_like(p)) for ps, decay in groups for p in ps]

    @torch.no_grad()
    def step(self):
        for p, decay, m in self.rows:
            sign = (0.9 * m + 0.1 * p.grad).sign()
            p.mul_(1 - LR * decay).sub_(LR * sign)
            m.mul_(0.99).add_(0.01 * p.grad)


def lion(matrices, vectors):
    return [Lion([(matrices, DECAY), (vectors, 0)])]


def adafactor(matrices, vectors):
    return [torch.optim.Adafactor([dict(params=matrices, weight_decay=DECAY),
                                   dict(params=vectors, weight_decay=0)],
                                  lr=LR, eps=(1.1920929e-7, 1e-3))]


def muon_with(adjust):
    return lambda matrices, vectors: [
        torch.optim.Muon(matrices, lr=LR, weight_decay=DECAY, adjust_lr_fn=adjust),
        torch.optim.AdamW(vectors, lr=LR, weight_decay=0, betas=(0.9, 0.95), eps=1e-8)]


def main():
    results = {"lion": run(lion), "adafactor": run(adafactor)}
    source = inspect.getsource(muon._zeropower_via_newtonschulz)
    exec(source.replace("dtype=torch.bfloat16", "dtype=grad.dtype"), muon.__dict__)
    results["original"] = run(muon_with("original"))
    results["match_rms_adamw"] = run(muon_with("match_rms_adamw"))
    print("-- Written by spec/golden/optim.py.")
    print("return {")
    for name, values in results.items():
        print(f"   {name} = {{")
        for i in range(0, len(values), 4):
            print("      " + " ".join(f"{v!r}," for v in values[i:i + 4]))
        print("   },")
    print("}")


main()
