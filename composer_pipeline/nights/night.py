"""A night: new rows and canaries, training from the current model, gates, and the decision.

``nights/<day>.json`` tells what a night found, measured and decided. A night that was killed goes
on when it is run again, and the next night makes good what it left: a version is stored with its
whole story before the pointer moves, so that everything after can be repeated.

What becomes of a night's states follows from its outcome. *promoted*: they are the replay buffer of
later nights. *not better*: they are new again, or old if nothing was learnt from them. *too few*
sessions are held out, or the model is wrong in too few: no model could pass the gate; the states
are new again, so that they add up. *nothing to learn*, since the model is right in nearly all: they
are old. *worse* and *held*: they are set aside, are neither trained nor measured on, and leave only
by ``accept``.
"""

import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from composer_pipeline.chat.convert import prompt_hash
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.report import MIN_SESSIONS, Estimate, estimate
from composer_pipeline.evaluation.select_states import select_states, training_content
from composer_pipeline.evaluation.states import EvaluationState, content_hash
from composer_pipeline.lake.place import check_day
from composer_pipeline.lake.provenance import build_id
from composer_pipeline.lake.store import Lake
from composer_pipeline.money import to_usd
from composer_pipeline.nights import model_registry as registry
from composer_pipeline.nights.anchors import (
    DRAWN,
    GAINS,
    OWN,
    Anchor,
    add_gains,
    drawn,
    is_stale,
    own_successes,
    read_anchors,
    references,
    write_anchors,
)
from composer_pipeline.nights.buffer import StateRow, dataset_states, mix, write_mix
from composer_pipeline.nights.canaries import Canary, facts_of, judge
from composer_pipeline.nights.gates import (
    Gate,
    Values,
    better,
    differences,
    fewest,
    mean_of,
    not_worse,
)
from composer_pipeline.nights.model_registry import ModelVersion
from composer_pipeline.nights.rules import NightRules
from composer_pipeline.reports import Progress, Report
from composer_pipeline.states.state import draw
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import validate
from composer_pipeline.training.rows import rows_of_tables
from composer_pipeline.training.run import PROGRESS, folder_digest

FOLDER = "nights"
#: What a trainer says of a channel whose rows are all left out, or whose hints do not help.
_UNUSABLE = re.compile(r"channel (\w+): none of ")
TRAIN, VALIDATION = "train", "validation"

Outcome = Literal[
    "promoted", "not better", "worse", "held", "nothing to learn", "too few", "nothing new",
    "dry run",
]  # fmt: skip
#: Outcomes whose states no later night uses, unless they are accepted by hand.
ASIDE = ("worse", "held")
#: Share of the sessions in which a model that has nothing to learn may be wrong.
NEARLY_RIGHT = 0.2
_AGAIN = "tonight's states are new again at the next night"


class Night(Report, msgspec.Struct, kw_only=True):
    """What a night did.

    Attributes:
        night: its day (UTC).
        outcome: what was decided; ``dry run`` where nothing was to be decided.
        why: sentences, the decisive first.
        parent: version that it trained from.
        version: version that it made, if it trained.
        rows: states: ``new`` and ``old`` in training, ``held_out``; and new ``sessions``.
        tables: training rows by table.
        usd: what the replies to the new states cost, in USD.
        simulated: whether any of those replies is a simulated teacher's.
        canaries: what was compared before training.
        gates: what was tested, against the reference.
        moved: kind of held-out states to the right actions before and after, and the difference
            of candidate and parent.
        losses: channel to its first and last number.
        run_dir: folder of the training run.
        seconds: of each step.
        notes: what was left out, and why.
        accepted: set by hand: the states of a held or refused night are new again.
    """

    night: str
    outcome: Outcome
    why: tuple[str, ...] = ()
    parent: int | None = None
    version: int | None = None
    rows: dict[str, int] = {}
    tables: dict[str, int] = {}
    usd: float = 0.0
    simulated: bool = False
    canaries: tuple[Canary, ...] = ()
    gates: tuple[Gate, ...] = ()
    moved: dict[str, tuple[float, float, Estimate]] = {}
    losses: dict[str, tuple[float, float]] = {}
    run_dir: str = ""
    seconds: dict[str, float] = {}
    notes: tuple[str, ...] = ()
    accepted: bool = False

    @property
    def idle(self) -> bool:
        """True if nothing was learnt: no better on the mean, and no anchor was in the way."""
        if self.outcome == "nothing to learn":
            return True
        if self.outcome != "not better" or not self.gates:
            return False
        change = self.gates[0].difference
        calm = all(gate.passed for gate in self.gates[1:])
        return calm and change is not None and change.mean <= 0


class Learner(Protocol):
    """Trains and measures models; ``nights.learner`` has the one that starts processes."""

    def train(self, data: Lake, recipe: TrainingRecipe) -> tuple[Path, dict[str, float]]:
        """Train a recipe on a dataset; return the folder of the weights and the run's numbers."""
        ...

    def measure(
        self, recipe: TrainingRecipe, weights: str, states: Sequence[EvaluationState]
    ) -> dict[str, float]:
        """Return state id to 1 where a model's answer is right in effect, else 0.

        States that do not fit the recipe's window are left out.
        """
        ...


def nights(lake: Lake) -> list[Night]:
    """Return all nights, by day."""
    names = registry.listed(lake, FOLDER)
    return [registry.decoded(lake, name, Night) for name in names]


def accept(lake: Lake, night: str) -> Night:
    """Let later nights use the states of a held or refused night.

    Raises:
        InputError: there is no such night, or its states were not set aside.
    """
    with lake.locked("night"):
        found = next((one for one in nights(lake) if one.night == night), None)
        if found is None or found.outcome not in ASIDE:
            raise InputError(
                f"night {night}: {found.outcome if found else 'there is none'}; only a night that"
                " was held or made the model worse can be accepted"
            )
        found.accepted = True
        _write(lake, found)
        return found


@dataclass
class History:
    """What earlier nights say about the states of the dataset."""

    #: State ids of promoted nights: the replay buffer.
    accepted: set[str] = field(default_factory=set)
    #: Of nights accepted by hand: new for training, and usual for canaries.
    released: set[str] = field(default_factory=set)
    #: Held-out sessions and state ids that were set aside.
    aside: set[str] = field(default_factory=set)
    aside_sessions: set[str] = field(default_factory=set)
    #: Of nights since the last promoted one that were not better or too few: new again, and usual.
    pending: set[str] = field(default_factory=set)
    #: Of nights that learnt nothing: old and usual, but no anchors are drawn from them.
    idle: set[str] = field(default_factory=set)
    #: Outcome of the last night that trained.
    last: str = ""
    #: Sessions that any model was trained on: a later build may move one to the held-out ones.
    trained: set[str] = field(default_factory=set)

    @property
    def barred(self) -> set[str]:
        """Return the sessions on which nothing is measured."""
        return self.aside_sessions | self.trained


def history(lake: Lake, before: str) -> History:
    """Return what the nights before a day say."""
    found, pointer = History(), registry.current(lake)
    left = set[int]()
    if pointer is not None:  # what the current version was trained from is not left
        left = pointer.rolled_back() - registry.lineage(lake, pointer.version)
    served = {step.to for step in pointer.moves} if pointer else set()
    for night in nights(lake):
        if night.night > before or night.outcome in ("nothing new", "dry run"):
            continue
        if night.night == before and not night.accepted:
            continue
        rows = lake.read("night_rows", days=[night.night]).to_pylist()
        states = {row["state_id"] for row in rows}
        if night.version is not None:
            found.last = night.outcome
            found.trained |= {row["session_id"] for row in rows if row["split"] == TRAIN}
        if night.version in served - left:
            found.accepted |= states
            found.pending = set()
        elif night.accepted:
            found.released |= states
        elif night.outcome in ASIDE or night.version in left:
            found.aside |= states
            found.aside_sessions |= {r["session_id"] for r in rows if r["split"] == VALIDATION}
        elif night.idle:
            found.idle |= states
            found.pending = set()
        else:
            found.pending = states
    return found


@dataclass(frozen=True)
class NightPlan:
    """What a night would do: its new states, those that it trains on, and the canaries."""

    night: str
    history: History
    states: Mapping[str, StateRow]
    fresh: Mapping[str, StateRow]
    new: list[StateRow]
    old: list[StateRow]
    canaries: list[Canary]

    @property
    def nothing(self) -> str:
        """Return why there is nothing to train on, or an empty string."""
        if not self.new:
            return "no state is new"
        known = {row.state_id for row in self.new} <= self.history.pending
        return "no state is new since the last night, which changed nothing" if known else ""

    @property
    def held(self) -> tuple[str, ...]:
        """Return why the night must not train."""
        return tuple(canary.why for canary in self.canaries if canary.holds)

    def rows(self) -> dict[str, int]:
        """Return the numbers of :attr:`Night.rows`."""
        held_out = sum(row.split == VALIDATION for row in self.fresh.values())
        sessions = len({row.session_id for row in self.fresh.values()})
        return {
            "new": len(self.new), "old": len(self.old), "held_out": held_out, "sessions": sessions
        }  # fmt: skip


def plan_night(lake: Lake, night: str, rules: NightRules) -> NightPlan:
    """Return what a night would do; nothing is written."""
    if not build_id(lake):
        raise InputError(
            f"lake {lake.url} has no dataset: there is no pair, or dataset was not run; a night"
            " buys replies to states of the last month (--max-usd), replay also to older ones"
        )
    states, known = dataset_states(lake, night), history(lake, night)
    old_ones = known.accepted | known.idle
    fresh = {name: row for name, row in states.items() if name not in old_ones | known.aside}
    frozen = {a.state.session_id for some in read_anchors(lake).values() for a in some}
    train = [r for r in states.values() if r.split == TRAIN and r.session_id not in frozen]
    new, old = mix(
        [row for row in train if row.state_id in fresh],
        [row for row in train if row.state_id in old_ones],
        night,
        rules.buffer,
    )
    usual = old_ones | known.released | known.pending
    tonight, before = facts_of(lake, states, fresh.keys() - usual, usual)
    return NightPlan(night, known, states, fresh, new, old, judge(tonight, before, rules.canaries))


def run_night(
    lake: Lake,
    recipe: TrainingRecipe,
    learner: Learner,
    work: Path,
    *,
    night: str = "",
    rules: NightRules | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Night:
    """Decide about tonight's model, from a dataset that is built.

    Args:
        lake: holds the dataset, the models and the nights.
        recipe: trains the first night's model; later ones start from the current version.
        learner: trains and measures.
        work: folder for the night's rows; emptied at the end.
        night: day of the night (UTC), today by default; states of later days are not used.
        rules: buffer, anchors, gate and canaries; by default the shipped ones.
        dry_run: only say what the night would do.
        progress: called as (label, done, total).

    Raises:
        InputError: there is no dataset, a later night was already, the recipe is of another base
            model, or the weights of the current version are gone.
        ComposerError: training or measuring failed; the night goes on when it is run again.
    """
    rules, night = rules or NightRules(), night or str(datetime.now(UTC).date())
    check_day(night, "night")
    validate(recipe)
    with lake.locked("night"), ExitStack() as stack:
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        if not dry_run:
            settle(lake, rules)
        if (done := _done(lake, night)) is not None:
            return done
        _check_order(lake, night)
        plan = plan_night(lake, night, rules)
        story = Night(
            night=night, outcome="dry run", rows=plan.rows(), canaries=tuple(plan.canaries),
        )  # fmt: skip
        story.usd, story.simulated = _paid(lake, plan.fresh.keys() - plan.history.pending)
        test = None
        if plan.nothing:
            story.outcome, story.why = "nothing new", (plan.nothing,)
        elif plan.held:
            story.outcome, story.why = "held", plan.held
        else:
            test = _test(lake, plan, rules)
            sessions = {state.session_id for state in test.new}
            if why := _too_few("whose right action is known", sessions, rules):
                story.outcome, story.why = "too few", (why, _AGAIN)
        if dry_run:
            story.outcome, story.why = "dry run", story.why or ("it would train",)
            return story
        if test is None or story.why:
            return _close(lake, story, plan)
        return _trained(lake, recipe, learner, work, plan, test, story, rules, progress)


def _done(lake: Lake, night: str) -> Night | None:
    """Return the story of a day whose night has trained: there is one a day."""
    return next((n for n in nights(lake) if n.night == night and n.version is not None), None)


def _check_order(lake: Lake, night: str) -> None:
    last = max((n.night for n in nights(lake) if n.outcome != "nothing new"), default="")
    if last > night:
        raise InputError(f"night {night}: nights go forward, and lake {lake.url} has {last}")


def settle(lake: Lake, rules: NightRules) -> None:
    """Finish what a killed night left: pointer, gains and story of a version that is stored."""
    told = {night.version for night in nights(lake)}
    for version in registry.versions(lake):
        if version.number and version.number not in told:
            _finish(lake, version, rules)


def held_out(lake: Lake, rows: Mapping[str, StateRow], known: History) -> list[EvaluationState]:
    """Return the states of the validation split that may be measured: the right action is known.

    ``rows`` are those of the dataset up to the night.
    """
    every = rows.values()
    sessions = {row.session_id for row in every if row.split == VALIDATION} - known.barred
    if not sessions:
        return []
    return [state for state in select_states(lake, VALIDATION) if state.session_id in sessions]


def new_states(
    states: Iterable[EvaluationState], rows: Mapping[str, StateRow], rules: NightRules
) -> list[EvaluationState]:
    """Return held-out states of some rows; where there are many, mistakes and the newest first."""
    found = [state for state in states if state.state_id in rows]
    found.sort(key=lambda s: (is_hard(s), rows[s.state_id].day, draw(s.state_id)), reverse=True)
    return found[: rules.gate.states]


def is_hard(state: EvaluationState) -> bool:
    """Return whether a state is a mistake of the agent."""
    return state.kind.startswith("hard")


@dataclass(frozen=True)
class _Test:
    """What may be measured, the hashes of prompts that may not, and the new ones."""

    states: list[EvaluationState]
    prompts: Collection[str]
    new: list[EvaluationState]


def _test(lake: Lake, plan: NightPlan, rules: NightRules) -> _Test:
    states = held_out(lake, plan.states, plan.history)
    _, prompts = training_content(lake)
    fresh = _unlike([state for state in states if state.state_id in plan.fresh], prompts)
    return _Test(states, prompts, new_states(fresh, plan.fresh, rules))


def _too_few(what: str, sessions: Collection[str], rules: NightRules) -> str:
    """Return why no model could pass the gate on new states, or an empty string."""
    if len(sessions) >= (least := fewest(rules.gate.level)):
        return ""
    return (
        f"{len(sessions)} sessions have new held-out states {what};"
        f" with fewer than {least} no model can be promoted"
    )


def _trained(
    lake: Lake, recipe: TrainingRecipe, learner: Learner, work: Path, plan: NightPlan,
    test: _Test, story: Night, rules: NightRules, progress: Progress | None,
) -> Night:  # fmt: skip
    clock, night = _Clock(story, progress), plan.night
    parent = _parent(lake, recipe)
    story.parent = parent.number
    target = Lake(str(work / night))
    story.tables = write_mix(lake, target, [row.state_id for row in (*plan.new, *plan.old)])
    recipe, story.notes = _of_tonight(recipe, parent, target, night)
    # A state that is frozen is measured as it was frozen.
    frozen = {a.state.state_id: a.state for some in read_anchors(lake).values() for a in some}
    measured = {state.state_id: frozen.get(state.state_id, state) for state in test.new}
    with clock.of("new states"):
        before = _measured(recipe, learner, parent, measured)
    wrong = {measured[name].session_id for name, value in before.items() if not value}
    if why := _too_few(f"at which version {parent.number} is wrong", wrong, rules):
        right = len(wrong) <= NEARLY_RIGHT * len({measured[name].session_id for name in before})
        story.outcome = "nothing to learn" if right else "too few"
        story.why = (why,) if right else (why, _AGAIN)
        return _close(lake, story, plan)
    with clock.of("anchors"):
        _refresh(lake, recipe, learner, parent, plan, rules, test)
        anchors = _apart(lake, target, parent, plan.history)
    with clock.of("training"):
        try:
            weights, numbers = _train(learner, target, recipe, story)
        except InputError as error:  # of tonight's rows
            story.outcome, story.why = "not better", (f"nothing was trained: {error}",)
            return _close(lake, story, plan)
    story.run_dir, story.losses = str(weights.parent), _losses(numbers)
    frozen = {a.state.state_id: a.state for some in anchors.values() for a in some}
    measured |= frozen
    with clock.of("measuring"):
        known = {name: state for name, state in frozen.items() if name not in before}
        before |= _measured(recipe, learner, parent, known)
        after = learner.measure(recipe, str(weights), [*measured.values()])
    gates, unknown = _gates(after, before, anchors, test.new, rules)
    story.gates, story.notes = tuple(gates), (*story.notes, *unknown)
    story.moved = _moved(after, before, anchors, test.new)
    story.outcome = _outcome(gates)
    story.why = tuple(gate.why for gate in gates if not gate.passed) or (gates[0].why,)
    _write_rows(lake, plan, story.outcome)
    version = _version(lake, story, recipe, parent, weights, after, measured)
    return _finish(lake, registry.add(lake, version), rules)


def _finish(lake: Lake, version: ModelVersion, rules: NightRules) -> Night:
    """Move the pointer to a promoted version, freeze its gains, and write the night's story."""
    story: Night = msgspec.convert(version.story, Night)
    story.version = version.number
    if version.decision == "promoted":
        rows = dataset_states(lake, story.night)
        states = held_out(lake, rows, history(lake, story.night))
        tonight = {row["state_id"] for row in lake.rows("night_rows", days=[story.night])}
        rows = {name: rows[name] for name in tonight & rows.keys()}
        hard = [state for state in new_states(states, rows, rules) if is_hard(state)]
        values = _known(version, version.window, hard)
        gains = [
            Anchor(state, story.night, version.number, values[state.state_id])
            for state in drawn(hard, rules.anchors)
            if state.state_id in values
        ]
        add_gains(lake, gains, rules.anchors)
        if not registry.follow(lake, version, story.why[0]):
            story.outcome = "not better"
            story.why = (f"version {version.parent} was current when the night began; another is",)
    _write(lake, story)
    return story


def _close(lake: Lake, story: Night, plan: NightPlan) -> Night:
    _write_rows(lake, plan, story.outcome)
    _write(lake, story)
    return story


def _write_rows(lake: Lake, plan: NightPlan, outcome: Outcome) -> None:
    # States of earlier nights are set aside with tonight's if the model was worse twice.
    again = (outcome, plan.history.last) == ("worse", "worse")
    earlier = plan.history.pending if outcome in ASIDE and not again else set()
    rows = [
        {"state_id": row.state_id, "session_id": row.session_id, "split": row.split,
         "repository": row.repository}
        for name, row in sorted(plan.fresh.items())
        if name not in earlier
    ]  # fmt: skip
    lake.write("night_rows", rows, day=plan.night)


def _write(lake: Lake, story: Night) -> None:
    lake.put_bytes(f"{FOLDER}/{story.night}.json", msgspec.json.format(msgspec.json.encode(story)))


def _parent(lake: Lake, recipe: TrainingRecipe) -> ModelVersion:
    """Return the current version; the first night stores the recipe's own model as version 0."""
    pointer = registry.current(lake)
    if pointer is None:
        known = registry.versions(lake)
        first = known[0] if known else registry.add(lake, _first(recipe))
        pointer = registry.move(lake, first.number, "night", "the model before the first night")
    parent = registry.version_of(lake, pointer.version)
    if parent.base != recipe.model:
        raise InputError(
            f"recipe field model: {recipe.model!r}, but the nights of lake {lake.url} train"
            f" {parent.base!r}; take a recipe of that model, or another lake"
        )
    registry.check_weights(parent)
    return parent


def _first(recipe: TrainingRecipe) -> ModelVersion:
    return ModelVersion(
        number=0, night="", base=recipe.model, weights=recipe.start_from or "", decision="first",
        made=_now(), recipe=recipe.name,
    )  # fmt: skip


def _of_tonight(
    recipe: TrainingRecipe, parent: ModelVersion, data: Lake, night: str
) -> tuple[TrainingRecipe, tuple[str, ...]]:
    """Return the recipe that goes on from the parent, without channels that have no row tonight."""
    counts = rows_of_tables(data, recipe, TRAIN)
    empty = [channel for channel, rows in counts.items() if not rows]
    if len(empty) == len(counts):
        raise InputError(f"night {night}: no channel of recipe {recipe.name} has a row")
    changed: dict[str, Any] = {"name": f"night-{night}"}
    if parent.weights:
        changed["start_from" if recipe.lora.r else "model"] = parent.weights
    notes = tuple(f"channel {channel} has no row tonight and is off" for channel in empty)
    return _without(recipe.model_copy(update=changed), empty), notes


def _without(recipe: TrainingRecipe, channels: Iterable[str]) -> TrainingRecipe:
    every = recipe.channels
    off = {name: getattr(every, name).model_copy(update={"weight": 0}) for name in channels}
    return recipe.model_copy(update={"channels": every.model_copy(update=off)})


def _train(
    learner: Learner, data: Lake, recipe: TrainingRecipe, story: Night
) -> tuple[Path, dict[str, float]]:
    """Train without the channels of which no row can be used tonight, and note which they are."""
    while True:
        try:
            return learner.train(data, recipe)
        except InputError as error:
            unusable, on = _UNUSABLE.match(str(error)), recipe.channels.weights()
            if unusable is None or unusable[1] not in on or len(on) == 1:
                raise
            story.notes = (*story.notes, f"{error}; the channel is off tonight")
            recipe = _without(recipe, [unusable[1]])


def _refresh(
    lake: Lake, recipe: TrainingRecipe, learner: Learner, parent: ModelVersion, plan: NightPlan,
    rules: NightRules, test: _Test,
) -> None:  # fmt: skip
    """Fill the kinds of anchors up, and draw anew those that are too old.

    Sessions of accepted nights are taken; the first night, which has none, takes its own.
    """
    known, old = plan.history, read_anchors(lake)
    held = {kind: _usable(lake, old.get(kind, ()), parent, known) for kind in DRAWN}
    rows = plan.states.values()
    usual = known.accepted or {row.state_id for row in rows}
    sessions = {row.session_id for row in rows if row.state_id in usual} - known.barred
    by_kind: dict[str, list[EvaluationState]] = {kind: [] for kind in DRAWN}
    for state in test.states:
        by_kind.setdefault(state.kind, []).append(state)
    by_kind[OWN] = [s for s in own_successes(lake) if s.state_id in plan.states]
    kept = {
        kind: [] if is_stale(some, plan.night, rules.anchors) else some
        for kind, some in held.items()
    }
    chosen = {
        kind: drawn(
            [s for s in _unlike(by_kind[kind], test.prompts) if s.session_id in sessions],
            rules.anchors,
            kept[kind],
        )
        for kind in DRAWN
    }
    every = {state.state_id: state for some in chosen.values() for state in some}
    values = _measured(recipe, learner, parent, every)
    for kind, some in chosen.items():
        before = {a.state.state_id: a for a in held[kind]}
        new = []
        for state in some:
            name = state.state_id
            if name in before:
                new.append(msgspec.structs.replace(before[name], night=plan.night))
            elif name in values:
                new.append(Anchor(state, plan.night, parent.number, values[name]))
        if new:
            write_anchors(lake, kind, [*kept[kind], *new])


def _unlike(states: Iterable[EvaluationState], prompts: Collection[str]) -> list[EvaluationState]:
    return [state for state in states if prompt_hash(state.messages) not in prompts]


def _usable(
    lake: Lake, anchors: Iterable[Anchor], parent: ModelVersion, known: History
) -> list[Anchor]:
    """Return the anchors but those set aside, and those frozen with a model that was left."""
    line = registry.lineage(lake, parent.number)
    return [
        a for a in anchors if a.version in line and a.state.session_id not in known.aside_sessions
    ]


def _apart(lake: Lake, data: Lake, parent: ModelVersion, known: History) -> dict[str, list[Anchor]]:
    """Return the anchors; those that share a session or a prompt with the rows leave for good."""
    sessions, prompts = training_content(data)
    found = {}
    for kind, anchors in read_anchors(lake).items():
        found[kind] = [
            a
            for a in anchors
            if a.state.session_id not in sessions and prompt_hash(a.state.messages) not in prompts
        ]
        if len(found[kind]) < len(anchors):
            write_anchors(lake, kind, found[kind])
    return {kind: _usable(lake, some, parent, known) for kind, some in found.items()}


def _measured(
    recipe: TrainingRecipe, learner: Learner, version: ModelVersion,
    states: Mapping[str, EvaluationState],
) -> dict[str, float]:  # fmt: skip
    """Return a version's values, of which those that its own night measured are known."""
    known = _known(version, _window(recipe), states.values())
    left = [state for name, state in states.items() if name not in known]
    return known | (learner.measure(recipe, version.weights, left) if left else {})


def _known(
    version: ModelVersion, window: str, states: Iterable[EvaluationState]
) -> dict[str, float]:
    """Return what a version's night measured of states, where their content is still the same."""
    if version.window != window:
        return {}
    by_content = {_content(state): state.state_id for state in states}
    return {by_content[key]: value for key, value in version.canonical.items() if key in by_content}


def _content(state: EvaluationState) -> str:
    """Return the hash of what is asked of a model at a state; ids of calls change when stored."""
    change = msgspec.structs.replace
    right = change(state.right, tool_calls=tuple(change(c, id="") for c in state.right.tool_calls))
    return content_hash([replace(state, right=right, wrong=None)])


def _window(recipe: TrainingRecipe) -> str:
    return recipe.data.model_dump_json()


def _gates(
    after: Mapping[str, float], before: Mapping[str, float],
    anchors: Mapping[str, Sequence[Anchor]], new: Iterable[EvaluationState], rules: NightRules,
) -> tuple[list[Gate], list[str]]:  # fmt: skip
    """Return the gate on new states, those on anchors, and which kinds were too few for one."""
    found = [better(after, _values(new, before), level=rules.gate.level)]
    unknown = []
    for kind, some in sorted(anchors.items()):
        margin = rules.anchors.gains_margin if kind == GAINS else rules.anchors.margin
        gate = not_worse(kind, after, references(some), margin, exclude=kind != GAINS)
        if gate is not None:
            found.append(gate)
        elif some:
            unknown.append(f"anchors {kind}: too few sessions to say anything")
    if len(found) == 1:
        why = f"there are too few anchors: a kind needs {MIN_SESSIONS} held-out sessions"
        found.append(Gate(name="anchors", passed=False, why=why, limit=rules.anchors.margin))
    mistakes = _values(filter(is_hard, new), before)
    hard = not_worse("hard", after, mistakes, rules.anchors.gains_margin, exclude=False)
    return [*found, hard] if hard is not None else found, unknown


def _values(states: Iterable[EvaluationState], known: Mapping[str, float]) -> Values:
    return {s.state_id: (s.session_id, known[s.state_id]) for s in states if s.state_id in known}


def _moved(
    after: Mapping[str, float], before: Mapping[str, float],
    anchors: Mapping[str, Sequence[Anchor]], new: Sequence[EvaluationState],
) -> dict[str, tuple[float, float, Estimate]]:  # fmt: skip
    """Return, by kind of held-out states, right actions of parent and candidate."""
    kinds = {"new": new, "hard": [*filter(is_hard, new)]}
    kinds |= {kind: [a.state for a in some] for kind, some in anchors.items()}
    found = {}
    for kind, states in kinds.items():
        parent = _values(states, before)
        both = differences(after, parent)
        change = estimate(both, ends=(-1, 1))
        if change is not None:
            was = mean_of(parent, both)
            found[kind] = (was, was + change.mean, change)
    return found


def _outcome(gates: Sequence[Gate]) -> Outcome:
    if any(gate.lost for gate in gates):
        return "worse"
    return "promoted" if all(gate.passed for gate in gates) else "not better"


def _version(
    lake: Lake, story: Night, recipe: TrainingRecipe, parent: ModelVersion, weights: Path,
    values: dict[str, float], states: Mapping[str, EvaluationState],
) -> ModelVersion:  # fmt: skip
    return ModelVersion(
        number=0, night=story.night, base=parent.base, weights=str(weights),
        decision=story.outcome, made=_now(), parent=parent.number, digest=folder_digest(weights),
        recipe=recipe.name, data={"build": build_id(lake), **story.rows}, window=_window(recipe),
        canonical={_content(states[name]): value for name, value in values.items()},
        why=story.why, story=msgspec.to_builtins(story),
    )  # fmt: skip


def _losses(numbers: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return channel to its first and last number of progress."""
    return {
        channel: (numbers[f"{key}_first"], numbers[f"{key}_last"])
        for channel, (key, *_) in PROGRESS.items()
        if f"{key}_first" in numbers and f"{key}_last" in numbers
    }


def _paid(lake: Lake, states: Collection[str]) -> tuple[float, bool]:
    """Return what the replies to states cost in USD, and whether any was simulated."""
    rows = lake.read("votes", columns=["state_id", "cost_picodollars", "simulated"]).to_pylist()
    mine = [row for row in rows if row["state_id"] in states]
    paid = sum(row["cost_picodollars"] or 0 for row in mine)
    return float(to_usd(paid)), any(row["simulated"] for row in mine)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class _Clock:
    """Measures the steps of a night and reports them."""

    story: Night
    progress: Progress | None

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        began = time.monotonic()
        if self.progress is not None:
            self.progress(f"night {self.story.night}: {step}", 0, 0)
        yield
        self.story.seconds[step] = round(time.monotonic() - began, 1)
