"""What a run's steps say over time: one curve a channel.

Belongs here: series of points from recorded events. Does not belong here: drawing (``figures``).
"""

from pathlib import Path

from composer_pipeline.training.run import METRICS, held_out_losses, read_steps

#: Curve to the number of a step that it follows. GRPO's loss at ratio 1 says nothing of the model,
#: so what its best answers gained is followed.
CURVES = {
    "grpo best gain": "grpo_best_gain",
    "sdpo": "sdpo_loss",
    "dpo": "dpo_loss",
    "sft": "sft_loss",
}

Points = list[tuple[float, float]]


def channel_curves(run_dir: Path) -> dict[str, Points]:
    """Return each channel's (step, value), mean over replicas; none of a channel without one."""
    if not (run_dir / METRICS).is_file():
        return {}
    steps = sorted(read_steps(run_dir).items())
    series: dict[str, Points] = {}
    for name, key in CURVES.items():
        by_step: dict[int, list[float]] = {}
        for (_, step), row in steps:
            if key in row:
                by_step.setdefault(step, []).append(row[key])
        if by_step:
            series[name] = [(step, sum(v) / len(v)) for step, v in sorted(by_step.items())]
    return series


def held_out_curve(run_dir: Path) -> Points:
    """Return (round, loss on held-out rows); empty where none was measured."""
    if not (run_dir / METRICS).is_file():
        return []
    return [(round_, loss) for round_, loss in sorted(held_out_losses(run_dir).items())]


def round_losses(run_dir: Path, inner_steps: int) -> dict[str, dict[int, float]]:
    """Return each channel's number by round, mean over its steps and replicas; held-out loss too.

    Args:
        run_dir: a run's folder.
        inner_steps: steps of a round.
    """
    found: dict[str, dict[int, float]] = {}
    for name, points in channel_curves(run_dir).items():
        of: dict[int, list[float]] = {}
        for step, value in points:
            of.setdefault((int(step) - 1) // inner_steps + 1, []).append(value)
        found[name] = {round_: sum(v) / len(v) for round_, v in of.items()}
    if held := held_out_curve(run_dir):
        found["held out"] = {int(round_): loss for round_, loss in held}
    return found
