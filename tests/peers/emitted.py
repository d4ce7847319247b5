"""Runs what `eglu emit` wrote, on PyTorch's tensors: cubins launched through the driver, as launches.txt says."""
import ctypes
import os
import re

import torch

_cuda = ctypes.CDLL("libcuda.so.1")
COUNTERS = None


def _check(code, what):
    if code:
        raise RuntimeError(f"{what}: CUDA error {code}")


def evaluate(text, dims):
    """The value of a dim's expression."""
    names = dict(dims, floordiv=lambda a, b: a // b, rem=lambda a, b: a % b, min=min, max=max)
    return int(eval(text, {"__builtins__": {}}, names))


class Emitted:
    """The launches of one folder."""

    def __init__(self, folder):
        global COUNTERS
        torch.cuda.current_stream()
        if COUNTERS is None:
            COUNTERS = torch.zeros(4096, dtype=torch.int32, device="cuda")
        self.inputs, self.outputs, self.scratch, self.launches, self.modules = [], [], [], [], {}
        for line in open(os.path.join(folder, "launches.txt")):
            parts = line.rstrip("\n").split("  ")
            if parts[0].startswith("input#"):
                self.inputs.append(parts[1])
                continue
            if parts[0].startswith("output#"):
                self.outputs.append(parts[1])
                continue
            if parts[0].startswith("scratch#"):
                self.scratch.append(parts[2].removesuffix(" B"))
                continue
            module, entry = parts[1].split(".cu:")
            grid = parts[2].removeprefix("grid ").split(" × ")
            args = parts[5].removeprefix("args ").split("; ")
            shared = int(parts[4].split()[1])
            function = self._function(os.path.join(folder, module + ".cubin"), entry, shared)
            self.launches.append((function, grid, [int(n) for n in parts[3].removeprefix("block ").split(" × ")], shared, args))

    def _function(self, path, entry, shared):
        if path not in self.modules:
            module = ctypes.c_void_p()
            image = open(path, "rb").read()
            _check(_cuda.cuModuleLoadData(ctypes.byref(module), image), path)
            self.modules[path] = module
        function = ctypes.c_void_p()
        _check(_cuda.cuModuleGetFunction(ctypes.byref(function), self.modules[path], entry.encode()), entry)
        # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: more than 48 KiB must be asked for.
        _check(_cuda.cuFuncSetAttribute(function, 8, shared), entry)
        return function

    def temporaries(self):
        """The memory that is neither an input nor an output."""
        found = [re.fullmatch(r"(.*#\d+) \+ .*", arg) for launch in self.launches for arg in launch[4]]
        names = dict.fromkeys(match[1] for match in found if match and not match[1].startswith("scratch#"))
        return [name for name in names if name not in self.inputs + self.outputs]

    def bind(self, tensors, dims):
        """A call that runs every launch; `tensors` are inputs, outputs and temporaries by name."""
        scratch = [torch.empty(max(1, evaluate(size, dims)), dtype=torch.uint8, device="cuda") for size in self.scratch]
        kept, calls = [tensors, scratch], []
        for function, grid, block, shared, args in self.launches:
            grid = [evaluate(extent, dims) for extent in grid]
            if 0 in grid:
                continue
            values = []
            for arg in args:
                pointer = re.fullmatch(r"(.*)#(\d*) \+ (.*)", arg)
                if pointer:
                    name, index, offset = pointer.groups()
                    memory = COUNTERS if name == "counters" else scratch[int(index)] if name == "scratch" else tensors[f"{name}#{index}"]
                    values.append(ctypes.c_uint64(memory.data_ptr() + evaluate(offset, dims)))
                else:
                    values.append(ctypes.c_int64(evaluate(arg, dims)))
            params = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
            kept += [values, params]
            calls.append((function, *grid, *block, shared, params))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

        def run(kept=kept):
            for function, x, y, z, bx, by, bz, shared, params in calls:
                _check(_cuda.cuLaunchKernel(function, x, y, z, bx, by, bz, shared, stream, params, None), "launch")

        run.kernels = len(calls)
        return run
