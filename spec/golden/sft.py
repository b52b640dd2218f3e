"""Losses of 50 steps of fine-tuning on a few chats, by a loop of PyTorch, transformers and peft.

    luajit spec/golden/sft_order.lua DIR > DIR/order.json
    python spec/golden/sft.py DIR > spec/golden/sft.lua

Every document is a batch of its own, so neither packing nor its masks are used. Text, tokens and
labels are made here from the records: the assistant's content and its end count. A step's loss is
the mean over its trained tokens; gradients are clipped to a norm of 1; AdamW has no decay. All is
computed in doubles.
"""
import json
import sys

import peft
import torch
import transformers


def document(record):
    ids, counts = [], []
    for message in record["messages"]:
        head = f"<{message['role']}>".encode()
        body = f"{message['content']}</s>".encode()
        ids += head + body
        counts += [False] * len(head) + [message["role"] == "assistant"] * len(body)
    labels = [i if c else -100 for i, c in zip(ids[1:], counts[1:])]
    return torch.tensor([ids]), torch.tensor(labels)


def train(model, lr, documents, steps):
    params = [p for p in model.parameters() if p.requires_grad]
    optim = torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0)
    losses = []
    for rows in steps:
        batch = [documents[i] for row in rows for i in row]
        count = sum(int((labels >= 0).sum()) for _, labels in batch)
        total = 0.0
        for ids, labels in batch:
            logits = model(input_ids=ids).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / count
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optim.step()
        optim.zero_grad()
        losses.append(total)
    return losses


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder + "/m", dtype=torch.float64, attn_implementation="eager")


def main():
    folder = sys.argv[1]
    with open(folder + "/c.jsonl") as f:
        documents = [document(json.loads(line)) for line in f]
    with open(folder + "/order.json") as f:
        order = json.load(f)
    adapted = peft.PeftModel.from_pretrained(load(folder), folder + "/a", is_trainable=True)
    print("-- Written by spec/golden/sft.py.\nreturn {")
    for name, model in (("full", load(folder)), ("lora", adapted.double())):
        losses = train(model, order["lr"][name], documents, order["steps"])
        print(f"   {name} = {{")
        for i in range(0, len(losses), 5):
            print("      " + " ".join(f"{x:.12g}," for x in losses[i:i + 5]))
        print("   },")
    print("}")


main()
