"""Times reductions and row norms in PyTorch (eager and torch.compile) and in eglu, in one run on one GPU, and prints a table.

usage: reductions.py EGLU [CASES] [SECONDS]
  EGLU     the command, which compiles the graphs of reduction_graphs.py here; or a folder of what it made of them before
           (`eglu emit --arch sm_90a`, each graph in a folder of its name)
  CASES    regular expression of the cases to run, such as "sum .*bf16"
  SECONDS  stop after that long (default 100)
Every result is compared with PyTorch's. The L2 cache is filled with clean lines of other
memory before each run; shares are of the copy bandwidth of the same run (bytes read
and written). With COMPILE=1 torch.compile is timed beside (slow to start).
"""
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import time

import reduction_graphs
import timing
import torch
from plans import Plan
from reduction_graphs import row

DTYPES = dict(
    f32=torch.float32, bf16=torch.bfloat16, f16=torch.float16, f64=torch.float64, i8=torch.int8, i32=torch.int32, i64=torch.int64,
    bool=torch.bool, c64=torch.complex64,
)
SHAPES = [
    ("full", (16384, 16384)), ("inner", (4096, 65536)), ("inner", (65536, 4096)), ("inner", (1 << 20, 256)), ("inner", (8 << 20, 32)),
    ("outer", (65536, 4096)), ("outer", (4096, 65536)), ("mid", (64, 4096, 1024)), ("inner", (16, 1 << 20)),
]
ROWS = [(32768, 4096), (8192, 16384), (4096, 131072), (131072, 1024)]


def reference(op, x, layout):
    dim = dict(full=None, inner=-1, outer=0, mid=1)[layout]
    call = getattr(torch, op)
    if dim is None:
        return lambda: call(x, dim=tuple(range(x.dim()))) if op in ("amax", "amin") else call(x)
    return lambda: call(x, dim)


def random(shape, dtype):
    if dtype == torch.bool:
        return torch.rand(shape, device="cuda") < 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(-100, 100, shape, device="cuda", dtype=dtype)
    return torch.randn(shape, device="cuda", dtype=dtype)


def median_us(call):
    return 1e3 * timing.measure(call, warm_up=2, repeats=15, clean=True, wait=False).median


def difference(got, want):
    if want.dtype in (torch.int64, torch.int32, torch.bool, torch.int8):
        return float((got != want).sum())
    wide = torch.complex128 if want.is_complex() else torch.float64
    got, want = got.to(wide), want.to(wide)
    return float((got - want).norm() / want.norm())


def compiled_by(command, wanted):
    """A folder of what the command makes of the graphs of the wanted cases."""
    folder = tempfile.mkdtemp()
    graphs = os.path.join(folder, "graphs")
    os.mkdir(graphs)
    reduction_graphs.main(graphs)

    def emit(file):
        name = os.path.splitext(file)[0]
        line = [command, "emit", os.path.join(graphs, file), "--arch", "sm_90a", "-o", os.path.join(folder, name)]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)

    files = [file for file in os.listdir(graphs) if any(wanted.search(label) for label, *_ in cases_of(os.path.splitext(file)[0]))]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(emit, files))
    return folder


def cases_of(name):
    """The cases of a graph: what they are called, and with what they run."""
    kind, op, *rest = name.split(".")
    layouts = [(layout, shape) for layout, shape in SHAPES if layout == rest[0]] if kind == "reduce" else [("row", shape) for shape in ROWS]
    for layout, shape in layouts:
        yield f"{op} {rest[-1]} {layout} {'x'.join(map(str, shape))}", name, kind, op, layout, shape, rest[-1]


def main():
    wanted = re.compile(sys.argv[2] if len(sys.argv) > 2 else ".")
    folder = sys.argv[1] if os.path.isdir(sys.argv[1]) else compiled_by(sys.argv[1], wanted)
    stop = time.time() + float(sys.argv[3] if len(sys.argv) > 3 else 100)
    big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(big)
    copy = 2 * big.numel() / median_us(lambda: other.copy_(big)) / 1e6
    del big, other
    print(f"{timing.head()}, copy {copy:.2f} TB/s; shares of it, times in µs")
    print(f"{'case':42} {'floor':>8} {'eglu':>8} {'eager':>8} {'compile':>8}   eglu eager compile  error")
    names = [name for name in sorted(os.listdir(folder)) if name.split(".")[0] in ("reduce", "row")]
    cases = [case for name in names for case in cases_of(name) if wanted.search(case[0])]
    for label, name, kind, op, layout, shape, dtype in cases:
        if time.time() > stop:
            print("out of time at", label)
            break
        try:
            one(folder, label, name, kind, op, layout, shape, dtype, copy)
        except Exception as error:
            print(f"{label:42} {type(error).__name__}: {str(error)[:150]}", flush=True)
        torch.cuda.empty_cache()


def one(folder, label, name, kind, op, layout, shape, dtype, copy):
    torch.manual_seed(0)
    x = random(shape, DTYPES[dtype])
    call = reference(op, x, layout) if kind == "reduce" else row(op, x)
    want = call()
    outputs = want if isinstance(want, tuple) else (want,)
    eager = median_us(call)
    compiled = float("nan")
    if os.environ.get("COMPILE"):
        torch._dynamo.reset()
        fast = torch.compile(call, dynamic=False)
        compiled = median_us(fast)
    dims = dict(s77=x.shape[0], mid=x.shape[1], s27=x.shape[-1])
    plan = Plan(os.path.join(folder, name), [x], {}, dims)
    plan.poison()
    plan.run()
    torch.cuda.synchronize()
    results = plan.outputs()
    error = max(difference(got, want) for got, want in zip(results, outputs))
    first = [result.clone() for result in results]
    mine = median_us(plan.run)
    same = all(torch.equal(a, b) or bool(torch.isnan(a).any()) for a, b in zip(first, results))
    bytes_moved = x.numel() * x.element_size() + sum(output.numel() * output.element_size() for output in outputs)
    floor = bytes_moved / copy / 1e6
    shares = " ".join(f"{floor / t:6.3f}" for t in (mine, eager, compiled))
    print(
        f"{label:42} {floor:8.1f} {mine:8.1f} {eager:8.1f} {compiled:8.1f}   {shares}  {error:.1e} {len(plan.calls)}{'' if same else ' NOT THE SAME BITS'}",
        flush=True,
    )


if __name__ == "__main__":
    main()
