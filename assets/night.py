"""A night's last step: tonight's model, and the gates that decide whether it is served."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from assets.failures import one_sentence
from assets.pages import OWNERS, explained, figures, record_run, records, view_link
from assets.replay import EVERY_S
from assets.resources import LakeResource, PublicationResource, RecipesResource
from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Progress
from composer_pipeline.versions import NIGHTS_VERSION

if TYPE_CHECKING:
    from composer_pipeline.nights.gates import Gate
    from composer_pipeline.nights.night import Night

#: What the page of a held night, or of a worse model, has for ``alerts``.
REFUSED = "refused"


class NightConfig(dg.Config):
    """The night, and whether it is a dry one."""

    day: str = Field(default="", description="Day of the night, YYYY-MM-DD; today (UTC) if empty.")
    dry_run: bool = Field(
        default=False,
        description="Only say what the night would do: a run with it buys nothing, trains nothing"
        " and leaves the current version.",
    )
    recipe: str = Field(default="", description="Training recipe; COMPOSER_TRAIN if empty.")
    rules: str = Field(default="", description="Rules of nights; COMPOSER_NIGHTS if empty.")


@dg.asset(
    group_name="night",
    kinds={"pytorch", "python"},
    owners=OWNERS,
    deps=["training_dataset"],
    pool="gpu",
    output_required=False,
    code_version=NIGHTS_VERSION,
)
@explained
@one_sentence
def tonights_model(
    context: dg.AssetExecutionContext,
    config: NightConfig,
    lake: LakeResource,
    recipes: RecipesResource,
    publication: PublicationResource,
) -> Iterator[dg.MaterializeResult[None]]:
    """Tonight's model: trained from the current version, and served only if it passes the gates.

    A night that is held, or whose model is refused, is no failure of the run: the current version
    stays, the checks say why, and `alerts` reports it. A dry run is recorded as an observation.
    """
    from composer_pipeline.nights.learner import ProcessLearner
    from composer_pipeline.nights.model_registry import publish_versions
    from composer_pipeline.nights.night import ASIDE, run_night
    from composer_pipeline.nights.page import write_page
    from composer_pipeline.nights.rules import NightRules
    from composer_pipeline.training.recipe import TrainingRecipe

    store, root, progress = lake.open(), Path(recipes.run_root), _to_log(context)
    story = run_night(
        store,
        TrainingRecipe.load(config.recipe or recipes.train),
        ProcessLearner(root, progress),
        root / "nights",
        night=config.day,
        rules=NightRules.load(config.rules or recipes.nights),
        dry_run=config.dry_run,
        progress=progress,
    )
    say = context.log.warning if story.outcome in ASIDE else context.log.info
    say(f"Night {story.night}, {story.outcome}: {'; '.join(story.why)}")
    record_run(context, {"night": story.night, "outcome": story.outcome, "version": story.version})
    page = _page(store, story)
    if config.dry_run:  # nothing was made
        context.log_event(dg.AssetObservation(context.asset_key, metadata=page))
        return
    file = dg.MetadataValue.path(write_page(store, story))
    yield dg.MaterializeResult(metadata={**page, "file": file})
    if publication.models:
        publish_versions(store, publication.models, allow_simulated=publication.simulated)


def _to_log(context: dg.AssetExecutionContext) -> Progress:
    """Return a progress that logs each new step, and within a step a line every ten seconds."""
    last, next_at = "", 0.0

    def report(label: str, done: int, total: int) -> None:
        nonlocal last, next_at
        if label == last and time.monotonic() < next_at:
            return
        last, next_at = label, time.monotonic() + EVERY_S
        context.log.info(f"{label}: {done:,} of {total:,}" if total else label)

    return report


def _page(lake: Lake, story: "Night") -> dict[str, Any]:
    """Return the night in one screen; a run's page shows texts and tables without a click."""
    from composer_pipeline.nights.model_registry import current
    from composer_pipeline.nights.night import ASIDE
    from composer_pipeline.nights.page import changes, markdown

    pointer, why = current(lake), "; ".join(story.why)
    moved = {kind: change.mean for kind, (_, _, change) in story.moved.items()}
    others = [mean for kind, mean in moved.items() if kind not in ("new", "hard")]
    made = "none" if story.version is None else f"{story.version} from {story.parent}"
    numbers = {
        "usd": story.usd,
        **{f"{name}_states": story.rows[name] for name in ("new", "old", "held_out")},
        "new_difference": moved.get("new"),
        "worst_anchor_difference": min(others, default=None),
        "current_version": pointer.version if pointer else None,
        "seconds": sum(story.seconds.values()),
    }
    told = {
        "decision": f"{story.night}, {story.outcome}: {why}",
        "before_and_after": "; ".join(
            f"{kind}: {a} → {b}, {c}" for kind, a, b, c, _ in changes(story)
        ),
        "states": ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in story.rows.items())
        + f"; their replies ${story.usd:.4f}{' (simulated)' if story.simulated else ''}",
        "trained_on": ", ".join(
            f"{rows} {name.removeprefix('dataset_')}" for name, rows in story.tables.items()
        ),
        "losses": "; ".join(f"{name} {a:.3g} → {b:.3g}" for name, (a, b) in story.losses.items()),
        "versions": f"tonight's {made}; served "
        + (f"{pointer.version}, {pointer.weights or pointer.base}" if pointer else "none"),
        "notes": "; ".join(story.notes),
        REFUSED: f"Night {story.night}, {story.outcome}: {story.why[0]}"
        if story.outcome in ASIDE
        else "",
    }
    canaries = [
        {"canary": c.name, "": "holds the night" if c.holds else "fine", "why": c.why}
        for c in story.canaries
    ]
    return {
        **{name: text for name, text in told.items() if text},
        "story": dg.MetadataValue.md(markdown(lake, story)),
        **({"canaries": records(canaries)} if canaries else {}),
        "look": view_link("runs"),
        **figures("tonights_model", numbers),
    }


SAYS = {
    "canaries": "Tonight's data is like that of the nights before; if not, nothing is trained.",
    "anchors_hold": "The model is not worse than a margin on any anchors or on new mistakes.",
    "better_on_new": "The model is better on held-out new states.",
}


@dg.multi_asset_check(
    name="night_gates",
    specs=[dg.AssetCheckSpec(n, asset=tonights_model, description=t) for n, t in SAYS.items()],
)
def gates(lake: LakeResource) -> Iterator[dg.AssetCheckResult]:
    """What the last night's canaries and gates said; they warn, since nothing worse is served."""
    from composer_pipeline.nights.night import nights

    told = nights(lake.open())
    for name, (passed, why) in _verdicts(told[-1] if told else None).items():
        yield dg.AssetCheckResult(
            asset_key=tonights_model.key,
            check_name=name,
            passed=passed,
            severity=dg.AssetCheckSeverity.WARN,
            description=why,
            metadata={"night": told[-1].night if told else "none"},
        )


def _verdicts(story: "Night | None") -> dict[str, tuple[bool, str]]:
    """Return check -> whether it passed, and a sentence."""
    if story is None:
        return dict.fromkeys(SAYS, (True, "There was no night yet."))
    held = "; ".join(canary.why for canary in story.canaries if canary.holds)
    if not story.gates:
        rest = True, f"Not measured, {story.outcome}: {'; '.join(story.why)}."
        new = anchors = rest
    else:
        new, anchors = _verdict(story.gates[:1]), _verdict(story.gates[1:])
    usual = all(canary.tonight is None for canary in story.canaries)
    fine = "There is too little to compare." if usual else "The data is like that of before."
    found = [(not held, held or fine), anchors, new]
    return dict(zip(SAYS, found, strict=True))


def _verdict(gates: "Sequence[Gate]") -> tuple[bool, str]:
    failed = [gate.why for gate in gates if not gate.passed]
    return not failed, "; ".join(failed or [gate.why for gate in gates])
