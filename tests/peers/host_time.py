#!/usr/bin/env python3
"""What the host spends on issuing one run, eglu's beside PyTorch's, in one go on one GPU.

    host_time.py EXAMPLE MODEL.pt2...

EXAMPLE is the built example `bench` (`cargo build --release --example bench`). Each model is run by it and by PyTorch: eagerly, by
torch.compile, and by torch.compile with mode="reduce-overhead", which replays CUDA graphs. Calls are not waited for one by one. Medians, us.
Archives with operators of `transformers` need it installed; the `batched_mm` dress of the fixtures needs PyTorch alone.
"""
import os
import statistics
import subprocess
import sys
import time

import torch
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree

import timing

BATCH = 20


def host(call, rounds=51):
    """The median time of a call on the host, us; the device's queue is emptied often enough never to hold it up."""
    times = []
    for round in range(rounds):
        for _ in range(BATCH):
            begin = time.perf_counter_ns()
            call()
            if round > 0:
                times.append(time.perf_counter_ns() - begin)
        torch.cuda.synchronize()
    return statistics.median(times) / 1e3


def peers(path):
    """PyTorch's figures for an archive; a mode that fails is told of."""
    program = move_to_device_pass(torch.export.load(path), "cuda")
    args, kwargs = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cuda(), program.example_inputs)
    module = program.module()
    for name, mode in [("eager", None), ("reduce-overhead", "reduce-overhead"), ("compiled", "default")]:
        torch._dynamo.reset()
        try:
            call = module if mode is None else torch.compile(module, mode=mode)
            with torch.inference_mode():
                for _ in range(5):
                    call(*args, **kwargs)
                torch.cuda.synchronize()
                yield f"{name} {host(lambda: call(*args, **kwargs)):.1f} us"
        except Exception as error:
            yield f"{name} failed ({str(error).strip().splitlines()[0][:60]})"


def main():
    example, *models = sys.argv[1:]
    print(timing.head())
    x = torch.randn(1024, device="cuda")
    print(f"one eager operator: {host(lambda: torch.relu(x)):.1f} us")
    for path in models:
        print(os.path.basename(path))
        for replay, how in [("1", "by replay"), ("0", "kernel by kernel")]:
            run = subprocess.run([example, path], env={**os.environ, "EGLU_REPLAY": replay}, capture_output=True, text=True)
            print(f"  eglu {how}: {run.stdout.strip() or run.stderr.strip()[-300:]}", flush=True)
        for figure in peers(path):
            print(f"  PyTorch {figure}", flush=True)


if __name__ == "__main__":
    main()
