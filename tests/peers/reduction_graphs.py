"""Writes what reductions.py times: a graph reduce.OP.LAYOUT.DTYPE.json, in eglu's JSON, for each reduction, and an archive
row.OP.DTYPE.pt2 for each row norm, for tensors of any sizes.

usage: reduction_graphs.py FOLDER
"""
import json
import os
import sys

import torch

DTYPES = ("f32", "bf16", "f16", "f64", "i8", "i32", "i64", "bool", "c64")


def graph(op, layout, dtype):
    """A reduction of a tensor of any sizes, in eglu's JSON."""
    symbols = ["s77", "mid", "s27"] if layout == "mid" else ["s77", "s27"]
    dims = dict(full=[0, 1], inner=[1], outer=[0], mid=[1])[layout]
    whole = op in ("sum", "prod") and dtype in ("i8", "i32", "i64", "bool")
    result = "i64" if whole or op.startswith("arg") else dtype
    shape = symbols
    nodes = [dict(name="x", kind="input", types=[dict(dtype=dtype, shape=symbols)])]
    if layout == "full" and op.startswith("arg"):
        shape, dims = ["s27*s77"], [0]
        call = dict(call=dict(reshape=dict(shape=shape)))
        nodes.append(dict(name="flat", kind=call, operands=[dict(value=["x", 0])], types=[dict(dtype=dtype, shape=shape)]))
    kept = [symbol for i, symbol in enumerate(shape) if i not in dims]
    call = dict(call=dict(reduce=dict(kind=op, dims=dims, keepdim=False, dtype=result)))
    types = [dict(dtype=result, shape=kept)]
    nodes.append(dict(name="y", kind=call, operands=[dict(value=[nodes[-1]["name"], 0])], types=types))
    ranges = {symbol: dict(min=1, max=None) for symbol in symbols}
    outputs = [dict(value=["y", 0], kind="user")]
    return dict(format="eglu-graph", version=1, name=f"reduce.{op}.{layout}.{dtype}", symbols=ranges, nodes=nodes, outputs=outputs)


def row(op, x):
    """A row norm in PyTorch, over the last dim."""
    functional = torch.nn.functional
    return dict(
        softmax=lambda: functional.softmax(x, -1),
        log_softmax=lambda: functional.log_softmax(x, -1),
        rms_norm=lambda: functional.rms_norm(x, x.shape[-1:]),
        layer_norm=lambda: functional.layer_norm(x, x.shape[-1:]),
        logsumexp=lambda: torch.logsumexp(x, -1),
        var_mean=lambda: torch.var_mean(x, -1),
    )[op]


ROW_OPS = ("softmax", "log_softmax", "rms_norm", "layer_norm", "logsumexp", "var_mean")


class Row(torch.nn.Module):
    """One of them as a module."""

    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, x):
        return row(self.op, x)()


def archive(op, dtype, path):
    """The archive of a row norm of a matrix of any sizes."""
    dims = {0: torch.export.Dim("rows", min=2), 1: torch.export.Dim("columns", min=2)}
    torch.export.save(torch.export.export(Row(op), (torch.randn(8, 64, dtype=dtype),), dynamic_shapes=dict(x=dims)), path)


def main(folder):
    for op in ROW_OPS:
        for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            archive(op, dtype, os.path.join(folder, f"row.{op}.{name}.pt2"))
    for op in ("sum", "mean", "prod", "amax", "amin", "argmax", "argmin"):
        for dtype in DTYPES:
            if (op == "mean" and dtype[0] in "ib") or (dtype[0] == "c" and op[0] == "a") or (dtype == "bool" and op[:3] == "arg"):
                continue
            for layout in ("full", "inner", "outer", "mid"):
                if layout == "inner" or dtype in ("f32", "bf16", "i8") or (layout == "outer" and dtype in ("f64", "i64")):
                    document = graph(op, layout, dtype)
                    json.dump(document, open(os.path.join(folder, document["name"] + ".json"), "w"))


if __name__ == "__main__":
    main(sys.argv[1])
