"""Times dense products of PyTorch (cuBLAS) and of eglu, in turns in one process on one GPU, and prints a table.

usage: dense.py EGLU [SECONDS] [CASE …]
  EGLU     path of the eglu command
  SECONDS  how long both sides of a case run in turns without rest (0.5)
  CASE     KIND:MxNxK, KIND being mm (weights [N, K]), mm_kn (weights [K, N]), glu (SwiGLU of N columns, weights [2 N, K] in one
           matrix), res (a residual added) or f32 (mm in f32); default: CASES below
PyTorch computes the product alone, without the unit or the residual, which eglu's kernel does in its epilogue. Both sides flush the cache
before each call and wait for it. Burst: 20 ms of rest before each call; sustained: none, so that the card's power limit meets both. The ratio
is PyTorch's time over eglu's; `error` is ‖eglu − ref‖ / ‖ref‖ with the reference in float64, of the first rows.
"""
import json
import os
import subprocess
import sys
import tempfile

import timing
import torch
from plans import Plan

CASES = """
mm:8192x8192x4096 glu:8192x4096x4096 mm:16384x28672x4096 glu:16384x14336x4096 mm_kn:8192x8192x4096 res:8192x8192x4096
mm:1x4096x4096 mm:4x4096x4096 mm:16x4096x4096 mm:64x4096x4096 mm:128x4096x4096 mm:256x4096x4096 mm:512x4096x4096 mm:1024x4096x4096
mm:2048x4096x4096 mm:4096x4096x4096 mm:1x28672x4096 mm:16x28672x4096 mm:64x28672x4096 mm:256x28672x4096
glu:1x14336x4096 glu:16x14336x4096 glu:64x14336x4096 glu:256x14336x4096 glu:1024x14336x4096
mm:1x4096x14336 mm:16x4096x14336 mm:256x4096x14336 mm:2048x4096x14336 mm:4096x6144x4096 f32:4096x4096x4096
""".split()

# Rates that the floors are made of: dense bf16 products, and reads alone, of one H200.
FLOPS, BYTES = 790e12, 4.4e12


def graph(kind, m, n, k):
    """The graph in eglu's own form, and the types of its inputs."""
    dtype = "f32" if kind == "f32" else "bf16"
    types = {"a": [m, k], "b": [k, n] if kind == "mm_kn" else [2 * n if kind == "glu" else n, k]}
    if kind == "res":
        types["c"] = [m, n]
    nodes = [{"name": name, "kind": "input", "types": [{"dtype": dtype, "shape": shape}]} for name, shape in types.items()]

    def call(name, op, attributes, operands, shape):
        operands = ["none" if operand is None else {"value": [operand, 0]} for operand in operands]
        kind = {"call": {op: attributes}}
        nodes.append({"name": name, "kind": kind, "operands": operands, "types": [{"dtype": dtype, "shape": shape}]})

    def pointwise(op, *args):
        return {"op": {"pointwise": op}, "args": list(args), "dtype": dtype}

    if kind == "glu":
        for name, start in (("gate", 0), ("up", n)):
            call(name, "slice", {"dim": 0, "start": start, "end": start + n, "step": 1}, ["b"], [n, k])
        silu, mul = pointwise("silu", {"param": 0}), pointwise("mul", {"instr": 0}, {"param": 1})
        program = {"params": [dtype] * 2, "instrs": [silu, mul], "results": [[{"instr": 1}, dtype]]}
        call("y", "dense_glu", {"program": program}, ["a", "gate", None, "up", None], [m, n])
    else:
        if kind != "mm_kn":
            call("bt", "permute", {"dims": [1, 0]}, ["b"], [k, n])
        b = "b" if kind == "mm_kn" else "bt"
        if kind == "res":
            add = pointwise("add", {"param": 0}, {"param": 1})
            program = {"params": [dtype] * 2, "instrs": [add], "results": [[{"instr": 0}, dtype]]}
            call("y", "contract", {"lanes": 1, "program": program}, ["a", b, "c"], [m, n])
        else:
            call("y", "mat_mul", {}, ["a", b], [m, n])
    outputs = [{"value": ["y", 0], "kind": "user"}]
    head = {"format": "eglu-graph", "version": 1, "name": kind, "symbols": {}}
    return {**head, "nodes": nodes, "outputs": outputs}, types


def emitted(command, document, folder):
    """The folder with the kernels of a graph in eglu's own form."""
    path = os.path.join(folder, "graph.json")
    with open(path, "w") as file:
        json.dump(document, file)
    to = os.path.join(folder, "plan")
    subprocess.run([command, "emit", path, "--arch", "sm_90a", "--output", to], check=True, stdout=subprocess.DEVNULL)
    return to


def error(kind, tensors, b, n, y):
    """Of the first rows of `y`."""
    rows = min(len(y), 256)
    expected = tensors["a"][:rows].double() @ b.double()
    if kind == "glu":
        expected = torch.nn.functional.silu(expected[:, :n]) * expected[:, n:]
    if kind == "res":
        expected += tensors["c"][:rows].double()
    return ((y[:rows].double() - expected).norm() / expected.norm()).item()


def main():
    command, *rest = sys.argv[1:]
    seconds = float(rest.pop(0)) if rest and rest[0].replace(".", "").isdigit() else 0.5
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"{timing.head()}; median ms and TFLOP/s, burst | sustained; ratio over 1: eglu is faster")
    print(f"{'case':24} {'floor':>8} {'torch':>8} {'eglu':>8} ratio    TF  TF | {'torch':>8} {'eglu':>8} ratio    TF  TF   error")
    for case in rest or CASES:
        kind, sizes = case.split(":")
        m, n, k = map(int, sizes.split("x"))
        document, types = graph(kind, m, n, k)
        dtype = torch.float32 if kind == "f32" else torch.bfloat16
        tensors = {name: torch.randn(shape, dtype=dtype, device="cuda") for name, shape in types.items()}
        # A product's elements are then about as large as a unit's inputs are in a model.
        tensors["b"] *= k**-0.5
        a, b = tensors["a"], tensors["b"] if kind == "mm_kn" else tensors["b"].T
        flops = 2 * m * b.shape[1] * k
        moved = sum(t.numel() * t.element_size() for t in tensors.values()) + m * n * a.element_size()
        floor = 1e3 * max(flops / (FLOPS if kind != "f32" else 67e12), moved / BYTES)
        with tempfile.TemporaryDirectory() as folder:
            plan = Plan(emitted(command, document, folder), list(tensors.values()), {})
        plan.poison()
        plan.run()
        off = error(kind, tensors, b, n, plan.outputs()[0])
        product = torch.empty(m, b.shape[1], dtype=dtype, device="cuda")
        calls = {"torch": lambda: torch.matmul(a, b, out=product), "eglu": plan.run}
        burst = timing.in_turns(calls, repeats=11, idle=0.02)
        sustained = timing.in_turns(calls, seconds=seconds)
        columns = []
        for times in (burst, sustained):
            torch_ms, eglu_ms = times["torch"].median, times["eglu"].median
            rates = " ".join(f"{flops / ms / 1e9:3.0f}" for ms in (torch_ms, eglu_ms))
            columns.append(f"{torch_ms:8.4f} {eglu_ms:8.4f} {torch_ms / eglu_ms:5.3f} {rates:>9}")
        print(f"{case:24} {floor:8.4f} {' | '.join(columns)}  {off:.1e}", flush=True)
        del a, b, tensors, plan, product, calls
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
