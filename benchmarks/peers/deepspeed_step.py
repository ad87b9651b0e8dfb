#!/usr/bin/env python3
"""The training step of benchmarks/gpt-10m.json with DeepSpeed: the same GPT, batch, precision, ZeRO
stage, optimizer and clipping, on CPU ranks over gloo.

usage: torchrun --nproc-per-node 2 deepspeed_step.py TEXT [--micro 2] [--time 32] [--steps 80] [--stage 1]

Needs torch and deepspeed (`pip install deepspeed`; its CPU optimizer is compiled at the first run).
Prints one line of JSON: median milliseconds a step, and seconds from process start to the first step.
"""
import argparse
import json
import os
import statistics
import time

process_start = time.time()

import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.c_attn(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers=6, heads=6, width=384, time_steps=32):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, width), nn.Embedding(time_steps, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight).float()
        return F.cross_entropy(logits.view(-1, 256), targets.reshape(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("--micro", type=int, default=2)
    parser.add_argument("--time", type=int, default=32)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--stage", type=int, default=1)
    args = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(max(1, os.cpu_count() // world))
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    config = {
        "train_micro_batch_size_per_gpu": args.micro,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": args.stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
    }
    model = Gpt(time_steps=args.time)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    data = torch.frombuffer(bytearray(open(args.text, "rb").read()), dtype=torch.uint8)
    generator = torch.Generator().manual_seed(engine.global_rank)
    times, first = [], None
    for _ in range(args.steps):
        start = time.perf_counter()
        at = torch.randint(0, len(data) - args.time - 1, (args.micro,), generator=generator).tolist()
        tokens = torch.stack([data[i:i + args.time] for i in at]).long()
        targets = torch.stack([data[i + 1:i + 1 + args.time] for i in at]).long()
        loss = engine(tokens, targets)
        engine.backward(loss)
        engine.step()
        loss.item()
        times.append(1000 * (time.perf_counter() - start))
        first = first or time.time() - process_start
    if engine.global_rank == 0:
        print(json.dumps({"rival": f"deepspeed {deepspeed.__version__}", "stage": args.stage, "ranks": world,
                          "micro": args.micro, "time": args.time, "loss": loss.item(),
                          "median_step_ms": statistics.median(times[min(5, len(times) // 2):]),
                          "seconds_to_first_step": first}))


if __name__ == "__main__":
    main()
