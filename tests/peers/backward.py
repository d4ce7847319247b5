"""Times a training step of MoE experts (forward and backward) in PyTorch and in eglu, in turns in one run on one GPU; prints a table.

usage: backward.py FOLDER [--compile] [--each] [NAME:TOKENS …]
  FOLDER     what `eglu emit --arch sm_90a` makes of each graph of experts.py, in a folder NAME-TOKENS.joint
  --compile  time torch.compile beside eager (slow to start)
  --each     print the time of each of eglu's launches
Both compute the gradients of x, the scores and every matrix and bias; eglu the loss too. The L2 cache is flushed before each step. Errors
are ‖gradient − reference‖ / ‖reference‖ against float64, over whole experts and whole tokens picked at random. Memory is the peak of a
step: weights, inputs, gradients and everything between.
"""
import sys

import timing
import torch
from experts import CASES, SIZES, Experts
from plans import Plan

# Rates that the floor is made of: dense bf16 products, and bytes moved, of one H200.
FLOPS, BYTES = 790e12, 4.25e12


def tensors_of(name, tokens):
    hidden, inner, experts, top_k, _ = SIZES[name]
    torch.manual_seed(0)
    block = Experts(name)
    with torch.no_grad():
        for key, parameter in block.named_parameters():
            parameter.normal_(0, 0.1 if "bias" in key else (inner if "down" in key else hidden) ** -0.5)
    x, dy = (torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    ids = torch.rand(tokens, experts, device="cuda").topk(top_k, dim=1).indices
    scores = torch.rand(tokens, top_k, device="cuda").softmax(dim=1).to(torch.bfloat16)
    return block, x.requires_grad_(), ids, scores.requires_grad_(), dy


def reference(block, x, ids, scores, dy, experts, tokens):
    """Gradients in float64: of the matrices and biases of these experts, and of x and the scores of these tokens."""
    wide = {key: parameter for key, parameter in block.named_parameters()}
    found = {key: [] for key in wide}

    def step(expert, rows):
        own = {key: parameter[expert].double().requires_grad_() for key, parameter in wide.items()}
        xe, se = x.detach()[rows // ids.shape[1]].double().requires_grad_(), scores.detach().reshape(-1)[rows].double().requires_grad_()
        up, down = (own[key] if block.paired else own[key].t() for key in ("gate_up_proj", "down_proj"))
        h = xe @ up + own.get("gate_up_proj_bias", 0)
        y = (block.activate(h) @ down + own.get("down_proj_bias", 0)) * se[:, None]
        order = list(own)
        return order, torch.autograd.grad(y, [xe, se, *own.values()], dy[rows // ids.shape[1]].double())

    flat = ids.reshape(-1)
    for expert in experts:
        order, (_, _, *grads) = step(expert, (flat == expert).nonzero().squeeze(1))
        for key, grad in zip(order, grads):
            found[key].append(grad)
    rows = (tokens[:, None] * ids.shape[1] + torch.arange(ids.shape[1], device="cuda")).reshape(-1)
    dx, ds = torch.zeros(len(rows), x.shape[1], dtype=torch.float64, device="cuda"), torch.zeros(len(rows), dtype=torch.float64, device="cuda")
    for expert in flat[rows].unique().tolist():
        mine = flat[rows] == expert
        _, (gx, gs, *_) = step(expert, rows[mine])
        dx[mine], ds[mine] = gx, gs
    found = {f"m.{key}": torch.stack(grads) for key, grads in found.items()}
    return found | {"x": dx.view(len(tokens), ids.shape[1], -1).sum(1), "scores": ds.view(len(tokens), -1)}


def errors(grads, wanted, experts, tokens):
    def one(key):
        got = grads[key][tokens if key in ("x", "scores") else experts].double()
        return ((got - wanted[key]).norm() / wanted[key].norm()).item()

    return {key: one(key) for key in wanted}


def peak_gb(call):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 1e9


def one(folder, case, with_compile, with_each):
    name, tokens = case.split(":")
    tokens = int(tokens)
    hidden, inner, count, top_k, paired = SIZES[name]
    block, x, ids, scores, dy = tensors_of(name, tokens)
    wanted = {"x": x, "scores": scores} | {f"m.{key}": parameter for key, parameter in block.named_parameters()}

    def step(forward):
        return torch.autograd.grad(forward(x, ids, scores), list(wanted.values()), dy)

    calls = {"eager": lambda: step(block)}
    if with_compile:
        torch._dynamo.reset()
        compiled = torch.compile(block, dynamic=False)
        calls["compile"] = lambda: step(compiled)
    memory = {key: peak_gb(call) for key, call in calls.items() if [call() for _ in range(2)]}
    theirs = dict(zip(wanted, calls["eager"]()))

    given = torch.cuda.memory_allocated() / 1e9 - sum(grad.nbytes for grad in theirs.values()) / 1e9
    plan = Plan(f"{folder}/{name}-{tokens}.joint", [dy, ids], {key: tensor.detach() for key, tensor in wanted.items()})
    memory["eglu"] = given + plan.arena_bytes / 1e9
    kinds = [output["kind"] for output in plan.document["outputs"]]

    def gradients():
        return {kind["gradient"]: value for kind, value in zip(kinds, plan.outputs()) if kind != "user"}

    plan.poison()
    plan.run()
    ours = {key: value.clone() for key, value in gradients().items()}
    plan.poison()
    plan.run()
    same = all(torch.equal(ours[key], value) for key, value in gradients().items())
    experts = torch.randperm(count)[:2].tolist()
    picked = torch.randperm(tokens, device="cuda")[:32]
    exact = reference(block, x, ids, scores, dy, experts, picked)
    found = [errors(grads, exact, experts, picked) for grads in (ours, theirs)]
    del ours, theirs, exact

    calls["eglu"] = plan.run
    times = timing.in_turns(calls, warm_up=2, repeats=5, most=30, seconds=1.0)
    rows, parameters = tokens * top_k, sum(parameter.numel() for parameter in block.parameters())
    moved = 2 * (3 * parameters + rows * (4 * hidden + 6 * inner))
    floor = 1e3 * max(18 * rows * hidden * inner / FLOPS, moved / BYTES)
    best = min(times[key][0] for key in times if key != "eglu")
    cells = "  ".join(f"{key} {ms:.3f} ({low:.3f}-{high:.3f}) {memory[key]:.1f} GB" for key, (ms, low, high) in times.items())
    print(f"{case:20} floor {floor:.3f}  {cells}  {len(plan.calls)} kernels  best peer / eglu {best / times['eglu'][0]:.3f}", flush=True)
    worst = "  ".join(f"{key.removeprefix('m.')} {found[0][key]:.2e} / {found[1][key]:.2e}" for key in found[0])
    print(f"  errors, eglu / eager: {worst}{'' if same else '  NOT THE SAME BITS'}", flush=True)
    if with_each:
        print("  " + "  ".join(f"{label} {ms:.3f}" for label, ms in plan.each_ms() if ms > 0.004), flush=True)


def main():
    flags, words = ([word for word in sys.argv[1:] if word.startswith("--") == flag] for flag in (True, False))
    folder, *cases = words
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; bf16, medians (min-max) in ms")
    for case in cases or CASES:
        try:
            one(folder, case, "--compile" in flags, "--each" in flags)
        except (RuntimeError, OSError) as error:
            print(f"{case:20} {type(error).__name__}: {str(error)[:300]}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
