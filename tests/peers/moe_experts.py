"""Times the experts of MoE blocks at real sizes, the sorting of their rows included, in PyTorch and in eglu, in turns, in one run on one GPU.

usage: moe_experts.py [--compile] EGLU FOLDER [NAME[:TOKENS,…] …]
  EGLU       path of the eglu command
  FOLDER     has NAME-experts.pt2, structure-only archives `(x [T, H], ids [T, k], scores [T, k])` for a symbolic T, bf16
  NAME       a key of experts.SIZES; TOKENS is 1,16,256,4096,16384 unless given
  --compile  times torch.compile, too (seconds for each size)
Routing is uniform, the cache is flushed before each call, up to 256 tokens both sides replay a CUDA graph; the GPU is busy until all of a call
is queued, so that times are the device's. Two columns for each side: burst (20 ms of idling before each call) and
sustained; then what PyTorch takes for what eglu takes. `error` is ‖eglu − ref‖ / ‖ref‖ for a few tokens
in float64. First the ceilings of the run: a copy, and cuBLAS at 8192³.
"""
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import timing
from experts import SIZES, Experts
from plans import Plan

TOKENS = [1, 16, 256, 4096, 16384]
GRAPHS_UP_TO = 256
CHECKED = 24
# Cycles that the GPU spins before each call, so that the host is ahead of it: else the launches' time on the host counts, too.
HEAD_START = 600_000


def captured(call):
    """`call`, made on a stream of its own, as a graph's replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run = call()
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay


def in_turns(calls, idle, rounds):
    """The spread of each call's times, one call after the other in each round."""
    times = [[] for _ in calls]
    for _ in range(rounds):
        for call, found in zip(calls, times):
            time.sleep(idle)
            timing.flush()
            torch.cuda._sleep(HEAD_START)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end))
    return [timing.Spread(statistics.median(found), min(found), max(found)) for found in times]


def error(module, x, ids, scores, y):
    """Of `y` at some tokens."""
    some = torch.randperm(len(x), device="cuda")[:CHECKED]
    expected = torch.zeros(len(some), x.shape[1], dtype=torch.float64, device="cuda")
    for expert in ids[some].unique().tolist():
        rows, choices = (ids[some] == expert).nonzero(as_tuple=True)
        value = x[some[rows]].double()
        for key, after in (("gate_up_proj", module.activate), ("down_proj", lambda h: h)):
            weight = getattr(module, key)[expert].double()
            value = value @ (weight if module.paired else weight.T)
            value = after(value + getattr(module, f"{key}_bias")[expert].double() if module.paired else value)
        expected.index_add_(0, rows, value * scores[some[rows], choices].double()[:, None])
    return ((y[some].double() - expected).norm() / expected.norm()).item()


def cells(command, folder, name, tokens, compiled):
    hidden, inner, experts, top_k, _ = SIZES[name]
    module = Experts(name).requires_grad_(False)
    for key, weight in module.named_parameters():
        for piece in weight.split(16):
            piece.normal_(0, 0.1 if "bias" in key else (inner if "down" in key else hidden) ** -0.5)
    archive = [path for path in glob.glob(f"{folder}/*-experts.pt2") if os.path.basename(path).startswith(name)][0]
    with tempfile.TemporaryDirectory() as scratch:
        emitted = f"{scratch}/plan"
        subprocess.run([command, "emit", archive, "--arch", "sm_90a", "--output", emitted], check=True, stdout=subprocess.DEVNULL)
        weights = {f"m.{key}": weight for key, weight in module.named_parameters()}
        quick = torch.compile(module, dynamic=True) if compiled else None
        for count in tokens:
            x = torch.randn(count, hidden, dtype=torch.bfloat16, device="cuda")
            ids = torch.rand(count, experts, device="cuda").topk(top_k, dim=1).indices
            scores = torch.rand(count, top_k, device="cuda").bfloat16()
            made = []

            def eglu():
                made.append(Plan(emitted, [x, ids, scores], weights, {symbol: count for symbol in symbols(emitted)}))
                return made[-1].run

            sides = [("eager", lambda: lambda: module(x, ids, scores))]
            if compiled:
                sides.append(("compile", lambda: lambda: quick(x, ids, scores)))
            sides.append(("eglu", eglu))
            wrap = captured if count <= GRAPHS_UP_TO else lambda call: call()
            calls = [wrap(call) for _, call in sides]
            made[-1].poison()
            calls[-1]()
            torch.cuda.synchronize()
            off = error(module, x, ids, scores, made[-1].outputs()[0])
            rounds = 9
            burst, sustained = (in_turns(calls, idle, rounds) for idle in (0.02, 0.0))
            yield count, [label for label, _ in sides], burst, sustained, off
            del calls, made


def symbols(folder):
    """The names of the symbols in the plan's sizes: of the one, T."""
    with open(f"{folder}/launches.json") as file:
        sizes = " ".join(buffer["numel"] for buffer in json.load(file)["buffers"])
    return set(re.findall(r"[A-Za-z_]\w*", sizes)) - {"floordiv", "rem", "min", "max"}


def main():
    options = [arg for arg in sys.argv[1:] if arg.startswith("--")]
    command, folder, *wanted = [arg for arg in sys.argv[1:] if not arg.startswith("--")]
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    copy, product = (in_turns([call], 0.0, 15)[0].median for call in (lambda: big[: 1 << 29].copy_(big[1 << 29 :]), lambda: a @ b))
    print(f"{timing.head()}; copy {2**30 / copy / 1e9:.2f} TB/s, cuBLAS {2 * 8192**3 / product / 1e9:.0f} TFLOP/s")
    print("median (min-max) ms, burst | sustained; PyTorch's best / eglu, burst and sustained")
    with torch.no_grad():
        for text in wanted or SIZES:
            name, _, tokens = text.partition(":")
            found = cells(command, folder, name, [int(t) for t in tokens.split(",")] if tokens else TOKENS, "--compile" in options)
            for count, labels, burst, sustained, off in found:
                line = " ".join(
                    f"{label} {a.median:.4f} ({a.low:.4f}-{a.high:.4f}) | {b.median:.4f} ({b.low:.4f}-{b.high:.4f})"
                    for label, a, b in zip(labels, burst, sustained)
                )
                ratios = [min(side.median for side in sides[:-1]) / sides[-1].median for sides in (burst, sustained)]
                print(f"{name:13} T={count:<6} {line}  {ratios[0]:.2f} {ratios[1]:.2f}  error {off:.1e}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
