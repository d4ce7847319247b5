"""Times one real-size MoE block in PyTorch (eager and torch.compile) and in eglu, in one run on one GPU, and prints a table.

usage: moe_blocks.py EGLU MODEL.pt2 NAME [TOKENS …]
  EGLU       path of the eglu command
  MODEL.pt2  the structure-only archive of the same block, bf16
  NAME       a key of BLOCKS below
Needs torch and transformers with the grouped_mm experts. PyTorch is timed before and after eglu, so that a drift of the clock shows.
"""
import sys

import timing
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


def main():
    command, archive, name, *tokens = sys.argv[1:]
    block, hidden = moe_block(name)
    print(f"{timing.head()}, transformers {transformers.__version__}, {name}, bf16; median (min-max) ms")
    with torch.no_grad():
        compiled = torch.compile(block, dynamic=False)
        for count in map(int, tokens or [4096]):
            x = torch.randn(1, count, hidden, dtype=torch.bfloat16, device="cuda")
            rows = [("eager", timing.measure(lambda: block(x))), ("torch.compile", timing.measure(lambda: compiled(x)))]
            bench = timing.bench(command, archive, "--tokens", count, "--weights", "random")
            for kind in ("unfused", "fused"):
                rows.append((f"eglu {kind}", timing.side(bench[kind])))
            rows += [("torch.compile again", timing.measure(lambda: compiled(x)))]
            print(f"T = {count}; eglu's fused and unfused results differ by {bench['max_error']}")
            for label, (median, low, high) in rows:
                print(f"  {label:22} {median:8.3f} ({low:.3f}-{high:.3f})")


if __name__ == "__main__":
    main()
