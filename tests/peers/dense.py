"""Times dense products of PyTorch (cuBLAS) and of eglu, in turns in one run on one GPU, and prints a table.

usage: dense.py EGLU [SECONDS] [CASE …]
  EGLU     path of the eglu command
  SECONDS  how long each side runs each time (0.5)
  CASE     KIND:MxNxK, KIND being mm (weights [N, K]), mm_kn (weights [K, N]), glu (SwiGLU of N columns, weights [2 N, K] in one
           matrix), res (a residual added) or f32 (mm in f32); default: CASES below
PyTorch computes the product alone, without the unit or the residual. Both sides flush the cache before each product and wait for it; both run
as long, so that the card's power limit meets both. The ratio is PyTorch's time over eglu's.
"""
import sys

import timing
import torch

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


def main():
    command, *rest = sys.argv[1:]
    seconds = float(rest.pop(0)) if rest and rest[0].replace(".", "").isdigit() else 0.5
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"{timing.head()}; ms, TFLOP/s, share of the floor; ratio over 1: eglu is faster")
    print(f"{'case':24} {'floor':>8} {'torch':>8} {'eglu':>8} {'torch':>8} {'eglu':>8}  TF torch  eglu  floor/eglu  ratio")
    for case in rest or CASES:
        kind, sizes = case.split(":")
        m, n, k = map(int, sizes.split("x"))
        document, types = graph(kind, m, n, k)
        dtype = torch.float32 if kind == "f32" else torch.bfloat16
        tensors = {name: torch.randn(shape, dtype=dtype, device="cuda") for name, shape in types.items()}
        a, b = tensors["a"], tensors["b"] if kind == "mm_kn" else tensors["b"].T
        flops = 2 * m * b.shape[1] * k
        moved = sum(t.numel() * t.element_size() for t in tensors.values()) + m * n * a.element_size()
        floor = 1e3 * max(flops / (FLOPS if kind != "f32" else 67e12), moved / BYTES)
        # eglu's fused and unfused runs take turns; of one op both are the same.
        rounds = [
            (
                timing.measure(lambda: torch.matmul(a, b), repeats=5, seconds=seconds).median,
                timing.side(timing.bench(command, document, "--seconds", seconds)["fused"]).median,
            )
            for _ in range(2)
        ]
        best = [min(times) for times in zip(*rounds)]
        each = " ".join(f"{ms:8.4f}" for pair in rounds for ms in pair)
        rates = "  ".join(f"{flops / ms / 1e9:6.0f}" for ms in best)
        print(f"{case:24} {floor:8.4f} {each}  {rates}  {floor / best[1]:10.2f}  {best[0] / best[1]:5.3f}", flush=True)
        del a, b, tensors
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
