"""The clock of the scripts beside this one: PyTorch's calls and eglu's measured alike, on one GPU.

    ms = timing.measure(lambda: torch.matmul(a, b))      # PyTorch, or whatever runs on PyTorch's stream
    report = timing.bench(eglu, "graph.json")            # eglu, by its own command: the JSON of `eglu bench`
    ms = timing.side(report["fused"])
"""
import collections
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch

# Times, ms.
Spread = collections.namedtuple("Spread", "median low high")

_flush = None


def flush(clean=False):
    """Puts other memory in place of all that the L2 cache holds: dirty lines, as after another kernel's results and as eglu's own bench
    does, or clean ones, which cost the next kernel no write-back."""
    global _flush
    if _flush is None:
        # Twice the cache: half of it may be set aside for another partition's data.
        _flush = torch.zeros(2 * torch.cuda.get_device_properties(0).L2_cache_size // 4, dtype=torch.float32, device="cuda")
    if clean:
        _flush.amax()
    else:
        _flush.zero_()


def measure(call, **how):
    """The time of one call; `how` as for `in_turns`."""
    return in_turns({None: call}, **how)[None]


def in_turns(calls, warm_up=5, repeats=30, most=None, seconds=0.0, clean=False, wait=True, idle=0.0):
    """The times on the device of several calls by name, from a cold cache, in turns, so that a drift of the clock meets all of them.

    Each is called `repeats` times at least, and on for `seconds`, but `most` times at most. `wait`: each call is waited for, as a caller would;
    without it the host runs ahead, and the time of a short kernel is its own. `idle`: seconds of rest before each call, after which the card
    runs at its highest clock.
    """
    for call in calls.values():
        for _ in range(warm_up):
            call()
    events, begin, rounds = {name: [] for name in calls}, time.monotonic(), 0
    while rounds < repeats or (time.monotonic() - begin < seconds and (most is None or rounds < most)):
        rounds += 1
        for name, call in calls.items():
            time.sleep(idle)
            flush(clean)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            if wait:
                torch.cuda.synchronize()
            events[name].append((start, end))
    torch.cuda.synchronize()
    times = {name: [start.elapsed_time(end) for start, end in pairs] for name, pairs in events.items()}
    return {name: Spread(statistics.median(ms), min(ms), max(ms)) for name, ms in times.items()}


def bench(command, model, *options):
    """The JSON of `eglu bench` on the GPU. `model` is a path, or a graph in eglu's own form as Python data."""
    with tempfile.TemporaryDirectory() as folder:
        if not isinstance(model, str):
            path = os.path.join(folder, "graph.json")
            with open(path, "w") as file:
                json.dump(model, file)
            model = path
        result = os.path.join(folder, "bench.json")
        line = [command, "bench", model, "--device", "cuda", "--json", result, *map(str, options)]
        subprocess.run(line, check=True, stdout=sys.stderr)
        with open(result) as file:
            return json.load(file)


def side(measurement):
    """The times of one side, `fused` or `unfused`, or of one of its steps, in that JSON."""
    return Spread(measurement["ms"], measurement["ms_min"], measurement["ms_max"])


def head():
    """The first line of a table: the GPU and PyTorch's version."""
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
