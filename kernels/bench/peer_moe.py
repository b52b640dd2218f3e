"""The peer's side of the row of experts: a training step of the Qwen3 MoE of transformers.

Variants are its ways to run the experts. Parameters arrive under the names of tide, where each
projection of all experts is one tensor.
"""
import torch
import torch.nn.functional as F

from peer import Llama


class Moe(Llama):
    def load(self, inputs):
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
        o = self.o
        self.ids = inputs.pop('ids').view(o['batch'], o['seq'])
        self.labels = inputs.pop('labels')
        config = Qwen3MoeConfig(
            vocab_size=o['vocab'], hidden_size=o['dim'], num_hidden_layers=o['layers'],
            num_attention_heads=o['heads'], num_key_value_heads=o['heads'],
            head_dim=o['dim'] // o['heads'], moe_intermediate_size=o['ffn'],
            num_experts=o['experts'], num_experts_per_tok=o['topk'], norm_topk_prob=True,
            use_cache=False, attn_implementation='sdpa')
        config._experts_implementation = o['variant']
        self.model = Qwen3MoeForCausalLM(config)
        state = {}
        for name, t in inputs.items():
            layer, _, field = name.partition('.mlp.')
            if field == 'router':
                state[layer + '.mlp.gate.weight'] = t
            elif field == 'gate_proj':
                state[layer + '.mlp.experts.gate_up_proj'] = torch.cat(
                    (t, inputs[layer + '.mlp.up_proj']), 1)
            elif field == 'down_proj':
                state[layer + '.mlp.experts.down_proj'] = t
            elif field != 'up_proj':
                state[name] = t
        self.model.load_state_dict(state, assign=True)
        self.params = list(self.model.parameters())
        for p in self.params:
            p.requires_grad_()
        self.auto, self.master = False, None
        self.optim = torch.optim.AdamW(self.params, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                       fused=True)

    def loss(self):
        x = self.model.model(input_ids=self.ids)[0]
        return F.cross_entropy(self.model.lm_head(x).view(-1, self.o['vocab']), self.labels)


CASES = {'moe': Moe}
