#!/usr/bin/env python3
"""What the host spends on issuing one run, eglu's beside PyTorch's, in one go on one GPU.

    host_time.py EXAMPLE MODEL.pt2... [--eager MODEL.pt2...]

EXAMPLE is the built example `bench` (`cargo build --release --example bench`). A model of one kernel, and each of those named, is run by it and by
PyTorch: eagerly, by torch.compile, and by torch.compile with mode="reduce-overhead", which replays CUDA graphs; those behind --eager eagerly
alone. Calls are not waited for one by one. Medians, us; and how long each took from the program to its first result.
Archives with operators of `transformers` need it installed; the `batched_mm` dress of the fixtures needs PyTorch alone.
"""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
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


class One(torch.nn.Module):
    """A model of one kernel."""

    def forward(self, x):
        return torch.relu(x)


def peers(path, modes):
    """PyTorch's figures for an archive; a mode that fails is told of."""
    program = move_to_device_pass(torch.export.load(path), "cuda")
    args, kwargs = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cuda(), program.example_inputs)
    module = program.module()
    # What the export asserts of devices is not moved with it.
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    module.recompile()
    for name, mode in modes:
        torch._dynamo.reset()
        try:
            call = module if mode is None else torch.compile(module, mode=mode)
            with torch.inference_mode():
                begin = time.perf_counter()
                call(*args, **kwargs)
                torch.cuda.synchronize()
                first = time.perf_counter() - begin
                for _ in range(5):
                    call(*args, **kwargs)
                torch.cuda.synchronize()
                yield f"{name} {host(lambda: call(*args, **kwargs)):.1f} us (first result after {first:.2f} s)"
        except Exception as error:
            yield f"{name} failed ({str(error).strip().splitlines()[0][:60]})"


def main():
    example, *models = sys.argv[1:]
    at = models.index("--eager") if "--eager" in models else len(models)
    print(timing.head())
    x = torch.randn(1024, device="cuda")
    print(f"one eager operator: {host(lambda: torch.relu(x)):.1f} us")
    with tempfile.TemporaryDirectory() as folder:
        one = pathlib.Path(folder) / "one.pt2"
        torch.export.save(torch.export.export(One(), (torch.randn(1024),)), one)
        modes = [("eager", None), ("compiled", "default"), ("reduce-overhead", "reduce-overhead")]
        for path, modes in [(one, modes)] + [(path, modes) for path in models[:at]] + [(path, modes[:1]) for path in models[at + 1 :]]:
            print(os.path.basename(path))
            for replay, how in [("1", "by replay"), ("0", "kernel by kernel")]:
                run = subprocess.run([example, path], env={**os.environ, "EGLU_REPLAY": replay}, capture_output=True, text=True)
                print(f"  eglu {how}: {run.stdout.strip() or run.stderr.strip()[-300:]}", flush=True)
            for figure in peers(path, modes):
                print(f"  PyTorch {figure}", flush=True)


if __name__ == "__main__":
    main()
