"""The peer's side of the rows of fine-tuning: a packed step of all weights, and one of adapters.

The driver gives the tokens of `rows` rows, the number of each token's document (0 or less: padding)
and its position there. Logits are made for the tokens that count alone, as ours are.
"""
import torch
import torch.nn.functional as F

from peer import Llama


def documents_of(numbers):
    """[(row, first, last + 1)] of runs of one document; padding is a run of its own."""
    runs = []
    for r, row in enumerate(numbers.tolist()):
        first = 0
        for t in range(1, len(row) + 1):
            if t == len(row) or row[t] != row[first]:
                runs.append((r, first, t))
                first = t
    return runs


def block_mask(numbers):
    """[rows, 1, seq, seq]: a token sees the tokens of its document up to itself."""
    seq = numbers.shape[1]
    causal = torch.ones(seq, seq, dtype=torch.bool).tril()
    return ((numbers[:, :, None] == numbers[:, None, :]) & causal)[:, None]


class Sft(Llama):
    """Variants: mask (one call with a mask of blocks) and documents (a causal call for each), in
    bf16 behind master or autocast."""

    def load(self, inputs):
        o = self.o
        self.positions = inputs.pop('positions').view(o['batch'], o['seq'])
        numbers = inputs.pop('documents').view(o['batch'], o['seq'])
        how = o['variant'].split('-')
        o['variant'] = how[0]
        self.runs = documents_of(numbers) if how[-1] == 'documents' else None
        self.mask = None if self.runs else block_mask(numbers)
        super().load(inputs)
        self.counted = (self.labels >= 0).nonzero()[:, 0]
        self.targets = self.labels[self.counted]

    def rotation(self):
        super().rotation()
        self.cos, self.sin = (v[self.positions][:, None] for v in (self.cos, self.sin))

    def sdpa(self, q, k, v):
        if not self.runs:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        parts = [F.scaled_dot_product_attention(
            *(x[r:r + 1, :, first:last] for x in (q, k, v)), is_causal=True)
            for r, first, last in self.runs]
        return torch.cat(parts, 2).view(q.shape[1], q.shape[0], -1, q.shape[3]).transpose(0, 1)

    def attention(self, x, at):
        o, i = self.o, self.i
        q, k, v = (F.linear(x, i['%s.self_attn.%s_proj.weight' % (at, name)])
                   .view(o['batch'], o['seq'], o['heads'], -1).transpose(1, 2) for name in 'qkv')
        y = self.sdpa(self.rotate(q), self.rotate(k), v)
        y = y.transpose(1, 2).reshape(o['batch'], o['seq'], o['dim'])
        return F.linear(y, i[at + '.self_attn.o_proj.weight'])

    def head(self, x):
        x = x.reshape(-1, self.o['dim'])[self.counted]
        logits = F.linear(x, self.i['lm_head.weight'])
        return F.cross_entropy(logits.float(), self.targets)


class Lora(Sft):
    """peft's adapters on the Llama of transformers."""

    def load(self, inputs):
        import peft
        from transformers import LlamaConfig, LlamaForCausalLM
        o = self.o
        ids, labels = inputs.pop('ids'), inputs.pop('labels')
        self.ids = ids.view(o['batch'], o['seq'])
        self.positions = inputs.pop('positions').view(o['batch'], o['seq'])
        self.mask = block_mask(inputs.pop('documents').view(o['batch'], o['seq']))
        self.counted = (labels >= 0).nonzero()[:, 0]
        self.targets = labels[self.counted]
        base = LlamaForCausalLM(LlamaConfig(
            vocab_size=o['vocab'], hidden_size=o['dim'], num_hidden_layers=o['layers'],
            num_attention_heads=o['heads'], intermediate_size=o['ffn'], rms_norm_eps=1e-5,
            use_cache=False, attn_implementation='sdpa'))
        adapters = {k: inputs.pop(k) for k in list(inputs) if 'lora_' in k}
        base.load_state_dict(inputs, assign=True)
        self.model = peft.get_peft_model(base, peft.LoraConfig(
            task_type='CAUSAL_LM', r=o['lora'], lora_alpha=2 * o['lora'],
            target_modules='all-linear'))
        self.params = []
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                name = name.replace('base_model.model.', '').replace('.default.weight', '')
                p.data = adapters[name]
                self.params.append(p)
        assert len(self.params) == len(adapters)
        self.auto, self.master = False, None
        self.optim = torch.optim.AdamW(self.params, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                       fused=True)

    def loss(self):
        llama = self.model.base_model.model
        x = llama.model(input_ids=self.ids, attention_mask=self.mask,
                        position_ids=self.positions)[0]
        x = x.reshape(-1, self.o['dim'])[self.counted]
        return F.cross_entropy(llama.lm_head(x).float(), self.targets)


CASES = {'sft': Sft, 'lora': Lora}
