"""Times one real-size MoE block in PyTorch (eager and torch.compile) and in eglu, in one run on one GPU, and prints a table.

usage: moe_blocks.py EGLU MODEL.pt2 NAME [TOKENS …]
  EGLU       path of the eglu command
  MODEL.pt2  the structure-only archive of the same block, bf16
  NAME       a key of BLOCKS below
Needs torch and transformers with the grouped_mm experts. PyTorch is timed before and after eglu, so that a drift of the clock shows.
"""
import json
import statistics
import subprocess
import sys
import tempfile

import torch
import transformers

BLOCKS = {
    "mixtral-8x7b": (
        "MixtralConfig",
        dict(hidden_size=4096, intermediate_size=14336, num_local_experts=8, num_experts_per_tok=2, num_hidden_layers=1),
    ),
    "qwen3-30b-a3b": (
        "Qwen3MoeConfig",
        dict(
            hidden_size=2048, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8, num_hidden_layers=1, norm_topk_prob=True
        ),
    ),
    "olmoe-1b-7b": ("OlmoeConfig", dict(hidden_size=2048, intermediate_size=1024, num_experts=64, num_experts_per_tok=8, num_hidden_layers=1)),
    "gpt-oss-120b": (
        "GptOssConfig",
        dict(hidden_size=2880, intermediate_size=2880, num_local_experts=128, num_experts_per_tok=4, num_hidden_layers=1),
    ),
}


def moe_block(name):
    config_class, sizes = BLOCKS[name]
    config = getattr(transformers, config_class)(**sizes, vocab_size=32)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.set_experts_implementation("grouped_mm")
    block = next(m for m in model.modules() if hasattr(m, "experts")).eval()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, 0, parameter.shape[-1] ** -0.5)
    return block, config.hidden_size


def median_ms(call, flush, repeats=30):
    for _ in range(5):
        call()
    times = []
    for _ in range(repeats):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times), min(times), max(times)


def eglu_bench(command, archive, tokens):
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        line = [command, "bench", archive, "--tokens", str(tokens), "--weights", "random", "--device", "cuda", "--json", report.name]
        subprocess.run(line, check=True, stdout=sys.stderr)
        return json.load(open(report.name))


def main():
    command, archive, name, *tokens = sys.argv[1:]
    block, hidden = moe_block(name)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {transformers.__version__}, {name}, bf16; median (min-max) ms")
    with torch.no_grad():
        compiled = torch.compile(block, dynamic=False)
        for count in map(int, tokens or [4096]):
            x = torch.randn(1, count, hidden, dtype=torch.bfloat16, device="cuda")
            rows = [("eager", median_ms(lambda: block(x), flush)), ("torch.compile", median_ms(lambda: compiled(x), flush))]
            bench = eglu_bench(command, archive, count)
            for kind in ("unfused", "fused"):
                side = bench[kind]
                rows.append((f"eglu {kind}", (side["ms"], side["ms_min"], side["ms_max"])))
            rows += [("torch.compile again", median_ms(lambda: compiled(x), flush))]
            print(f"T = {count}; eglu's fused and unfused results differ by {bench['max_error']}")
            for label, (median, low, high) in rows:
                print(f"  {label:22} {median:8.3f} ({low:.3f}-{high:.3f})")


if __name__ == "__main__":
    main()
