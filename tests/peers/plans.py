"""Runs what `eglu emit` wrote on PyTorch's tensors: cubins launched through the driver, as launches.json says."""
import ctypes
import json
import os

import torch

_cuda = ctypes.CDLL("libcuda.so.1")
_DTYPES = dict(
    f64=torch.float64, f32=torch.float32, f16=torch.float16, bf16=torch.bfloat16, i64=torch.int64, i32=torch.int32, i8=torch.int8,
    bool=torch.bool, c64=torch.complex64,
)
_MAP_DTYPES = dict(f16=6, bf16=9)
_MAX_DYNAMIC_SHARED, _OVERLAPS = 8, 6
_counters = {}


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_int * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    ]


def _check(code, what):
    if code:
        text = ctypes.c_char_p()
        _cuda.cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{what}: CUDA error {code} ({text.value})")


class Plan:
    """The launches of one folder, bound to tensors."""

    def __init__(self, folder, inputs, weights, dims=None):
        """`inputs` by position, `weights` by name; `dims` gives the symbols' values."""
        torch.cuda.current_stream()
        self.document = json.load(open(os.path.join(folder, "launches.json")))
        self.names = dict(dims or {}, floordiv=lambda a, b: a // b, rem=lambda a, b: a % b, min=min, max=max)
        self.kept, self.functions, self.folder = [inputs, weights], {}, folder
        given = [self._given(buffer["source"], inputs, weights) for buffer in self.document["buffers"]]
        self._place(given)
        # The configuration and parameters of each call, made once.
        self.calls = [self._call(launch) for launch in self.document["launches"] if 0 not in map(self.value, launch["grid"])]

    def value(self, text):
        return int(eval(text, {"__builtins__": {}}, self.names))

    def _given(self, source, inputs, weights):
        if source == "step":
            return None
        if "input" in source:
            return inputs[source["input"]]
        if "weight" in source:
            return weights[source["weight"]]
        return torch.tensor(source["constant"] + [0] * 16, dtype=torch.uint8, device="cuda")

    def _place(self, given):
        """Gives what launches write a place in one arena; memory is used again once its last reader has run."""
        buffers, scratch = self.document["buffers"], self.document["scratch"]
        sizes = {("buffer", i): self.value(b["numel"]) * _DTYPES[b["dtype"]].itemsize for i, b in enumerate(buffers) if given[i] is None}
        sizes |= {("scratch", i): self.value(s["bytes"]) for i, s in enumerate(scratch)}
        lives = {}
        for at, launch in enumerate(self.document["launches"]):
            for arg in launch["args"]:
                memory = arg.get("pointer") or arg.get("map")
                if isinstance(memory, dict):
                    key = next(iter(memory.items()))
                    lives[key] = (lives.get(key, (at, at))[0], at)
        for output in self.document["outputs"]:
            key = ("buffer", output["buffer"])
            if key in lives:
                lives[key] = (lives[key][0], len(self.document["launches"]))
        placed, ends = [], {}
        for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
            if key not in lives:
                continue
            first, last = lives[key]
            at, size = 0, (max(sizes[key], 16) + 255) // 256 * 256
            for start, end, other_first, other_last in sorted(placed):
                if other_first <= last and first <= other_last:
                    if at + size <= start:
                        break
                    at = max(at, end)
            placed.append((at, at + size, first, last))
            ends[key] = at
        self.arena_bytes = max((end for _, end, _, _ in placed), default=0)
        self.arena = torch.empty(self.arena_bytes, dtype=torch.uint8, device="cuda")
        self.addresses = {key: self.arena.data_ptr() + at for key, at in ends.items()}
        self.starts = ends
        self.addresses |= {("buffer", i): tensor.data_ptr() for i, tensor in enumerate(given) if tensor is not None}
        self.given = given

    def _address(self, memory):
        if memory == "counters":
            if not _counters:
                _counters[0] = torch.zeros(1 << 16, dtype=torch.int32, device="cuda")
            return _counters[0].data_ptr()
        return self.addresses[next(iter(memory.items()))]

    def _function(self, launch):
        key = (launch["module"], launch["entry"])
        if key not in self.functions:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            image = open(os.path.join(self.folder, launch["module"] + ".cubin"), "rb").read()
            _check(_cuda.cuModuleLoadData(ctypes.byref(module), image), launch["module"])
            _check(_cuda.cuModuleGetFunction(ctypes.byref(function), module, launch["entry"].encode()), launch["entry"])
            if launch["shared"]:
                _check(_cuda.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, launch["shared"]), launch["entry"])
            self.functions[key] = function
        return self.functions[key]

    def _argument(self, arg):
        if "int" in arg:
            value = ctypes.c_int64(self.value(arg["int"]))
        elif "pointer" in arg:
            value = ctypes.c_uint64(self._address(arg["pointer"]) + self.value(arg["offset"]))
        else:
            return self._map(arg)
        self.kept.append(value)
        return ctypes.addressof(value)

    def _map(self, arg):
        raw = ctypes.create_string_buffer(128 + 64)
        self.kept.append(raw)
        place = (ctypes.addressof(raw) + 63) & ~63
        dims = [max(1, self.value(dim)) for dim in arg["dims"]]
        n = len(dims)
        strides = (ctypes.c_uint64 * n)(*[self.value(stride) for stride in arg["strides"]])
        base = self._address(arg["map"]) + self.value(arg["offset"])
        code = _cuda.cuTensorMapEncodeTiled(
            ctypes.c_void_p(place), _MAP_DTYPES[arg["dtype"]], n, ctypes.c_void_p(base), (ctypes.c_uint64 * n)(*dims), strides,
            (ctypes.c_uint32 * n)(*arg["tile"]), (ctypes.c_uint32 * n)(*[1] * n), 0, 3, 3 if arg["follows"] else 0, 0,
        )
        _check(code, f"tensor map {arg}")
        return place

    def _call(self, launch):
        args = [self._argument(arg) for arg in launch["args"]]
        params = (ctypes.c_void_p * max(1, len(args)))(*args)
        attribute = _Attribute(_OVERLAPS, 0, (ctypes.c_int * 16)(1 if launch["overlaps"] else 0))
        config = _Config(
            (ctypes.c_uint * 3)(*map(self.value, launch["grid"])), (ctypes.c_uint * 3)(*launch["block"]), launch["shared"],
            torch.cuda.current_stream().cuda_stream, ctypes.addressof(attribute), 1,
        )
        self.kept += [params, attribute]
        return launch, self._function(launch), config, params

    def run(self):
        """Launches everything on the stream that was current when this was made."""
        for launch, function, config, params in self.calls:
            _check(_cuda.cuLaunchKernelEx(ctypes.byref(config), function, params, None), launch["entry"])

    def outputs(self):
        """The outputs, as views of the memory that the next run writes."""
        found = []
        for output in self.document["outputs"]:
            buffer = self.document["buffers"][output["buffer"]]
            dtype, tensor = _DTYPES[buffer["dtype"]], self.given[output["buffer"]]
            if tensor is None:
                start = self.starts[("buffer", output["buffer"])]
                tensor = self.arena[start : start + self.value(buffer["numel"]) * dtype.itemsize].view(dtype)
            shape, strides = ([self.value(dim) for dim in output[key]] for key in ("shape", "strides"))
            found.append(torch.as_strided(tensor, shape, strides, tensor.storage_offset() + self.value(output["offset"])))
        return found

    def poison(self):
        """Fills everything that launches write with NaN."""
        self.arena.fill_(0xFF)

    def each_ms(self, rounds=3):
        """The name and the least time of each launch, by itself."""
        times = [[] for _ in self.calls]
        for _ in range(rounds):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(len(self.calls) + 1)]
            torch.cuda._sleep(3_000_000)
            events[0].record()
            for i, (launch, function, config, params) in enumerate(self.calls):
                _check(_cuda.cuLaunchKernelEx(ctypes.byref(config), function, params, None), launch["entry"])
                events[i + 1].record()
            torch.cuda.synchronize()
            for i, list_of_times in enumerate(times):
                list_of_times.append(events[i].elapsed_time(events[i + 1]))
        return [(f'{launch["step"]}:{launch["entry"]}', min(ms)) for (launch, *_), ms in zip(self.calls, times)]
