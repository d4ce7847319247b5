"""The experts of MoE blocks at real sizes, as PyTorch computes them with grouped_mm; exports their forward-and-backward graphs.

usage: experts.py FOLDER [NAME:TOKENS …]
Writes NAME-TOKENS.joint.pt2 for each (default: CASES below): the graph alone, without weights, made on the meta device. Its inputs are
dy [T, H] and ids [T, K]; x, the scores and the experts' matrices are parameters, so that gradients of all of them are outputs, after the
loss sum(y · dy).
"""
import os
import sys
import zipfile

import torch

# Hidden and intermediate size, experts, experts a token, and whether gate and up take turns with biases and clamps (gpt-oss).
SIZES = {
    "qwen3-30b": (2048, 768, 128, 8, False),
    "olmoe": (2048, 1024, 64, 8, False),
    "mixtral-8x7b": (4096, 14336, 8, 2, False),
    "gpt-oss-120b": (2880, 2880, 128, 4, True),
    "deepseek-v3": (7168, 2048, 256, 8, False),
}
CASES = [f"{name}:{tokens}" for tokens in (4096, 16384) for name in SIZES if (name, tokens) != ("deepseek-v3", 16384)]


class Experts(torch.nn.Module):
    """`forward(x [T, H], ids [T, K], scores [T, K])`, by the steps of transformers' grouped_mm experts."""

    def __init__(self, name, device="cuda", dtype=torch.bfloat16):
        super().__init__()
        hidden, inner, self.experts, self.top_k, self.paired = SIZES[name]
        shapes = dict(gate_up_proj=(2 * inner, hidden), down_proj=(hidden, inner))
        for key, (rows, columns) in shapes.items():
            # gpt-oss stores its matrices with K first.
            shape = (columns, rows) if self.paired else (rows, columns)
            weight = torch.empty(self.experts, *shape, device=device, dtype=dtype)
            self.register_parameter(key, torch.nn.Parameter(weight))
            if self.paired:
                self.register_parameter(f"{key}_bias", torch.nn.Parameter(torch.empty(self.experts, rows, device=device, dtype=dtype)))

    def product(self, x, key, offsets, ids):
        weight = getattr(self, key)
        y = torch.nn.functional.grouped_mm(x, weight if self.paired else weight.transpose(-2, -1), offs=offsets)
        return y + getattr(self, f"{key}_bias")[ids] if self.paired else y

    def activate(self, h):
        if not self.paired:
            gate, up = h.chunk(2, dim=-1)
            return torch.nn.functional.silu(gate) * up
        gate, up = h[..., ::2].clamp(max=7.0), h[..., 1::2].clamp(min=-7.0, max=7.0)
        return (up + 1) * (gate * torch.sigmoid(gate * 1.702))

    def forward(self, x, ids, scores):
        sorted_ids, order = torch.sort(ids.reshape(-1))
        counts = torch.histc(sorted_ids.int(), bins=self.experts, min=0, max=self.experts - 1)
        offsets = torch.cumsum(counts, dim=0, dtype=torch.int32)
        h = self.activate(self.product(x[order // self.top_k], "gate_up_proj", offsets, sorted_ids))
        y = self.product(h, "down_proj", offsets, sorted_ids) * scores.reshape(-1)[order].unsqueeze(-1)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=order.device)
        return y[inverse].view(x.shape[0], self.top_k, -1).sum(dim=1)


class Loss(torch.nn.Module):
    def __init__(self, experts, x, scores):
        super().__init__()
        self.m, self.x, self.scores = experts, torch.nn.Parameter(x), torch.nn.Parameter(scores)

    def forward(self, dy, ids):
        return (self.m(self.x, ids, self.scores) * dy).sum()


def export(name, tokens):
    """The joint graph's JSON."""
    from torch._export.serde.serialize import serialize
    from torch.export.experimental import _export_forward_backward

    hidden, _, _, top_k, _ = SIZES[name]
    rows = [torch.empty(tokens, n, dtype=torch.bfloat16, device="meta") for n in (hidden, top_k, hidden)]
    ids = torch.empty(tokens, top_k, dtype=torch.int64, device="meta")
    loss = Loss(Experts(name, "meta"), rows[0], rows[1])
    joint = _export_forward_backward(torch.export.export(loss, (rows[2], ids), strict=False))
    return serialize(joint).exported_program


def main():
    folder, *cases = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    for case in cases or CASES:
        name, tokens = case.split(":")
        stem = f"{name}-{tokens}.joint"
        graph = export(name, int(tokens))
        with zipfile.ZipFile(f"{folder}/{stem}.pt2", "w", zipfile.ZIP_DEFLATED) as file:
            parts = {"models/model.json": graph, "archive_format": "pt2", "archive_version": "0", "byteorder": "little", ".data/version": "3\n"}
            for part, content in parts.items():
                file.writestr(f"{stem}/{part}", content)
        print(stem, len(graph))


if __name__ == "__main__":
    main()
