"""A model's composer step beside a step of TRL's GRPO, SDPO and DPO trainers, on its own device.

    python benchmarks/model_steps.py FOLDER --record steps.md

The steps are those of ``losses_gpu``, on the model of a folder. On a CPU (``--cpu``) no memory is
measured, and seconds are CPU seconds in fp32. ``make proof-gpu`` runs it.
"""

import argparse
import sys
from pathlib import Path

from losses_gpu import ANSWER, GROUP, HINT, Found, machine, measure

#: TRL's trainers.
TRL = {"grpo": "TRL: GRPO", "sdpo": "TRL: SDPO", "dpo": "TRL: DPO"}


def main() -> int:
    """Measure every prompt, write the page and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder")
    parser.add_argument("--name", help="of the model, in the heading")
    parser.add_argument("--prompts", type=int, nargs="+", default=[1024, 4096], help="tokens each")
    parser.add_argument("--record", type=Path, required=True, help="the page")
    parser.add_argument("--cpu", action="store_true", help="on the CPU")
    options = parser.parse_args()
    import torch

    if options.cpu:
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        print("model-steps: no CUDA device here, so nothing was run", file=sys.stderr)
        return 2
    lines = []
    for prompt in options.prompts:
        lines += rows_of(prompt, {w: measure(options.model, prompt, w) for w in ("ours", *TRL)})
    text = page(options.name or options.model, lines)
    options.record.write_text(text, encoding="utf-8")
    print(text)
    return 0


def page(name: str, lines: list[str]) -> str:
    """Return the page of a model with the lines of its table."""
    return (
        f"## A step of {name} beside TRL's trainers\n\n{machine()}. One state: a prompt, {GROUP}"
        f" answers, a pair, a failed action with its hint, {ANSWER} tokens an answer; random ids,"
        " the same for all: what a step costs depends on the lengths. LoRA on every linear map,"
        " activation checkpointing; steps of each trainer's `train()` behind a first one. TRL's are"
        " those of GRPOTrainer, SDPOTrainer and DPOTrainer; tokens are the rows' as they run"
        " them. On a CPU: CPU seconds, fp32, memory not measured.\n\n"
        "| prompt | step | tokens | seconds | tokens/s | peak GiB | of TRL's seconds |\n"
        "|--:|---|--:|--:|--:|--:|--:|\n" + "\n".join(lines) + "\n"
    )


def rows_of(prompt: int, found: dict[str, Found]) -> list[str]:
    """Return a prompt's lines; what ran out of memory has no numbers, and then TRL no sum."""
    each = prompt + ANSWER
    tokens = {"grpo": GROUP * each, "sdpo": 2 * each + HINT, "dpo": 2 * each}
    tokens["trl"] = tokens["ours"] = sum(tokens.values())
    theirs = [found[way] for way in TRL]
    if all(t.seconds for t in theirs):
        seconds, peak = sum(t.seconds for t in theirs), max(t.peak for t in theirs)
        found = {**found, "trl": Found(seconds, peak)}
    lines = []
    for way, named in {**TRL, "trl": "TRL: all three", "ours": "composer"}.items():
        cells = ["out of memory", "", "", ""]
        if (one := found.get(way)) and one.seconds:
            whole = found.get("trl")
            cells = [
                f"{one.seconds:.3f}", f"{tokens[way] / one.seconds:,.0f}",
                f"{one.peak / 2**30:.2f}" if one.peak else "",
                f"{one.seconds / whole.seconds:.2f}" if whole else "",
            ]  # fmt: skip
        lines.append(f"| {prompt:,} | {named} | {tokens[way]:,} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
