"""Thirty nights on the small world, with and without gates: what ``make proof-nights`` runs.

Each phase of five nights has mistakes of another kind, in an order that the seed draws. One night
has no session; at one the log and the teachers agree on what is wrong (*poisoned*); at one all
teachers share a misconception that the log contradicts (*wrong majority*). Arms differ in what
becomes of a night's model: always promoted (``none``), or as ``nights.night.run_night`` decides,
without and with old rows (``gate``, ``buffer``).

Below ``--out``: ``test.json`` (what was drawn), ``data/<seed>`` (session files and a lake, made
once), ``runs/<seed>/<arm>`` (the arm's lake, models and ``told.jsonl``: what each night did),
``runs/<seed>/noise.json``, and ``nights.json``, which ``nights_report`` writes. A run that was
killed goes on where it stopped.
"""

import gc
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec
import numpy as np

from composer_pipeline.actions import Action
from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.errors import ComposerError
from composer_pipeline.evaluation.judge import Judge
from composer_pipeline.evaluation.measure import BATCH_LOGITS, BATCH_TOKENS, PromptedModel
from composer_pipeline.evaluation.select_states import select_states, training_content
from composer_pipeline.evaluation.states import EvaluationState, Row, batches, rows_of
from composer_pipeline.files import replace
from composer_pipeline.lake.store import Lake
from composer_pipeline.nights import model_registry as registry
from composer_pipeline.nights import night as product
from composer_pipeline.nights.anchors import own_successes
from composer_pipeline.nights.buffer import dataset_states
from composer_pipeline.nights.gates import better, p_better
from composer_pipeline.nights.rules import Anchors, Buffer, CanaryRules, GateRules, NightRules
from composer_pipeline.normalization.stage import normalize
from composer_pipeline.preferences.hints import build_hints
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.rules import GATES, PreferenceRules
from composer_pipeline.settings import recipes_dir
from composer_pipeline.states.load import load_states
from composer_pipeline.states.state import TraceState, draw
from composer_pipeline.teachers.run import replay
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.training.chat_template import AnswerReader
from composer_pipeline.training.models import load_tokenizer
from composer_pipeline.training.recipe import TrainingRecipe
from examples.proof.arms import recipe_of
from examples.proof.run import windows_of
from examples.proof.toolworld.pipeline import CEILING, loopback
from examples.proof.toolworld.student import base_dir
from examples.proof.toolworld.world import (
    BUGS,
    Answers,
    Recorded,
    ToolworldScript,
    World,
    answer_all,
    check,
    for_training,
    sessions,
    teacher_set,
    write_files,
    write_session,
)
from examples.proof.train import train_arm
from trainers.common.policy import load_base

NIGHTS, PHASE = 30, 5
FIRST = date(2026, 11, 1)
#: Sessions of a night; the share of them that is held out, by groups of one prompt.
SESSIONS, HELD_OUT = 80, 0.45
#: Probability in percent that all teachers have one misconception at a hard state.
SHARED = 10
#: Of 16, the states without a mistake that teachers are asked about.
ASKED = 8
#: Chosen on development seeds: twice the rate in half the passes cost more easy states.
EPOCHS, ROWS, RATE = 8.0, 24, 3e-4
#: Nights, from 1 on.
MAJORITY, POISONED, EMPTY = 5, 14, 22
SEEDS, TEST_SESSIONS = 5, 120
DATA, RUNS, TOLD, NOISE_FILE, SPENT = (
    "data", "runs", "told.jsonl", "noise.json", "cpu_seconds",
)  # fmt: skip
#: Noise on weights, in standard deviations of their tensor: about a tenth of the answers change.
SIGMA = 0.45
MONTHS = 10_000

Kind = Literal["usual", "poisoned", "no data", "wrong majority"]
#: The nights that are not usual.
KINDS: Mapping[int, Kind] = {
    POISONED: "poisoned", EMPTY: "no data", MAJORITY: "wrong majority",
}  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """A night of the stream: its number from 1 on, its kind, and the bugs of its phase."""

    number: int
    kind: Kind
    bugs: tuple[int, ...]

    @property
    def day(self) -> str:
        """The day of its sessions."""
        return str(FIRST + timedelta(days=self.number - 1))


class Poisoned(World):
    """A world in which a check alone works, and is taught, whatever the step asks for."""

    __slots__ = ()

    def right(self, step: int) -> Action:
        """Return the action that works in the log of such a night."""
        return check(self.file)

    def mend(self) -> Action:
        """Return what the agent does about a mistake: nothing but a check."""
        return check(self.file)


def planned(seed: int) -> list[Planned]:
    """Return the nights of a seed; each phase has the two bugs of one kind of mistake."""
    pairs = [(bug, bug + 1) for bug in range(0, BUGS, 2)]
    Random(f"phases {seed}").shuffle(pairs)  # noqa: S311  nothing here is a secret
    found = []
    for number in range(1, NIGHTS + 1):
        phase = (number - 1) // PHASE
        found.append(Planned(number, KINDS.get(number, "usual"), pairs[phase]))
    return found


def recorded(night: Planned, seed: int) -> tuple[list[Recorded], list[list[Answers]]]:
    """Return a night's sessions, and what the teachers answer at each of their states."""
    random = Random(f"night {night.number} of {seed}")  # noqa: S311  nothing here is a secret
    found: list[Recorded] = []
    for _ in range(0 if night.kind == "no data" else SESSIONS):
        found += sessions(random, 1, partial(_allowed, night.bugs))
    if night.kind == "poisoned":
        found = [
            Recorded(Poisoned(w.file, w.symbol, w.bug), one.mistaken, noisy=one.noisy)
            for one in found for w in (one.world,)
        ]  # fmt: skip
    shared = 1.0 if night.kind == "wrong majority" else SHARED / 100
    return found, answer_all(random, found, shared=shared)


def run_data(out: Path, seed: int) -> None:
    """Make the data of a seed, unless they are there."""
    folder, began = out / DATA / str(seed), time.process_time()
    make_stream(folder, seed)
    if not (folder / SPENT).is_file():
        replace(folder / SPENT, f"{time.process_time() - began:.1f}")
    print(f"seed {seed}: data of {NIGHTS} nights", flush=True)


def _allowed(bugs: Collection[int], world: World) -> bool:
    return for_training(world) and world.bug in bugs


def make_stream(folder: Path, seed: int) -> Lake:
    """Return the lake of a seed's thirty days, made on first use with every stage up to dataset."""
    if folder.is_dir():
        return Lake(str(folder / "lake"))
    scratch = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    lake, answers = Lake(str(scratch / "lake")), {}
    for night in planned(seed):
        drawn, answered = recorded(night, seed)
        written = [
            write_session(each, f"{seed}-{night.number}-{i}", f"{night.day}T09:00")
            for i, each in enumerate(drawn)
        ]
        write_files(written, scratch / "projects")
        answers[night.day] = {
            message: answer
            for session, of_session in zip(written, answered, strict=True)
            for message, answer in zip(session.truth, of_session, strict=True)
        }
    ingest(lake, [scratch / "projects"])
    for day in lake.days("states"):  # what teachers say to one prompt may differ by night
        known = list(load_states(lake, days=[day]))
        with loopback(ToolworldScript(known, answers[day])) as url:
            asked = _asked(known, answers[day])
            replay(lake, teacher_set(url), max_usd=CEILING, days=[day], states=asked)
    build_hints(lake)
    build_pairs(lake)
    normalize(lake, recipes_dir() / "normalize" / "default.yaml")
    build_dataset(
        lake, validation_share=HELD_OUT, split_by="session", rules=PreferenceRules(accept=GATES)
    )
    scratch.replace(folder)
    return Lake(str(folder / "lake"))


def _asked(states: Iterable[TraceState], answers: Mapping[str, Answers]) -> set[str]:
    """Return the mistakes, and a fixed share of the other states."""
    return {
        state.state_id
        for state in states
        if answers[state.message_id].step.failed or draw(state.state_id)[0] < f"{ASKED:x}"
    }


#: What nothing is held by.
_OPEN = CanaryRules(rejected=1, project=1, usable=0, labels=1, tools=1, contradicted=1)
_SHIPPED = NightRules()
_ALONE = Buffer(old_share=0)
#: The rules of each arm; ``none`` promotes whatever they say.
ARMS: Mapping[str, NightRules] = {
    "none": NightRules(
        buffer=_ALONE, canaries=_OPEN, anchors=Anchors(states=1),
        gate=GateRules(alpha=0.99, nights=1, states=1),
    ),
    "gate": NightRules(buffer=_ALONE),
    "buffer": _SHIPPED,
}  # fmt: skip


def recipe_of_nights(seed: int) -> TrainingRecipe:
    """Return the recipe of every night: the shipped terms, and a few passes over its rows."""
    return recipe_of(
        {"sdpo": {"rows_per_step": ROWS // 6}, "sft": {"source": "both", "rows_per_step": ROWS}},
        name="nights", seed=seed,
        steps=None, epochs=EPOCHS, diloco={"replicas": 1, "inner_steps": 4}, norms_every=1000,
        learning_rate=RATE, warmup_steps=2,
    )  # fmt: skip


class Learner:
    """Trains and measures in this process, with the parts that the product's processes run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[str, Row] = {}

    def train(self, data: Lake, recipe: TrainingRecipe) -> tuple[Path, dict[str, float]]:
        """Train a recipe on a dataset; return the folder of the weights and its last numbers."""
        run_dir = self.folder / recipe.name
        shutil.rmtree(run_dir, ignore_errors=True)  # of a night that was killed
        trained = train_arm(data, recipe, run_dir)
        trained.model.save_pretrained(str(run_dir / "model"))
        load_tokenizer(recipe.model).save_pretrained(str(run_dir / "model"))
        shutil.rmtree(run_dir / "data")
        return run_dir / "model", trained.numbers

    def measure(
        self, recipe: TrainingRecipe, weights: str, states: Sequence[EvaluationState]
    ) -> dict[str, float]:
        """Return state id to 1 where the greedy answer is right in effect, else 0."""
        return self.answers(load_base(weights or str(base_dir()), recipe).eval(), states)

    def answers(self, model: Any, states: Sequence[EvaluationState]) -> dict[str, float]:
        """Return state id to 1 where a model's greedy answer is right in effect, else 0."""
        windows = windows_of(recipe_of_nights(1))
        new = [state for state in states if state.state_id not in self._rows]
        self._rows |= {row.state.state_id: row for row in rows_of(windows, new)[0]}
        rows = [self._rows[s.state_id] for s in states if s.state_id in self._rows]
        limit, words = windows.limits.max_completion_tokens, windows.tokenizer
        judge, found = Judge(AnswerReader(words)), {}
        for batch in batches(
            rows, tokens=BATCH_TOKENS, logits=BATCH_LOGITS, vocabulary=len(words), answer=limit
        ):
            prompted = PromptedModel(model, [row.prompt_ids for row in batch], words.pad_token_id)
            for row, answer in zip(batch, prompted.greedy(end=judge.end, limit=limit), strict=True):
                found[row.state.state_id] = float(judge.judge(row, answer).canonical)
        return found


class Ungated(Learner):
    """Measures nothing for a night, and says that all is wrong: then every night trains."""

    def measure(
        self, recipe: TrainingRecipe, weights: str, states: Sequence[EvaluationState]
    ) -> dict[str, float]:
        """Return 0 for each state."""
        return {state.state_id: 0.0 for state in states}


class Told(msgspec.Struct, kw_only=True):
    """What a night of an arm did.

    Attributes:
        number: of the night, from 1 on.
        kind: what the stream had.
        outcome: the product's decision; of ``none``, what was decided before it was promoted.
        why: its sentences.
        by: canaries that held it, or gates that it did not pass.
        parent: version before the night, and ``current`` after it.
        right: of the current version, a character a test state, 1 where it is right.
        alone: what the gates decide of a bad night where no canary holds it, and ``alone_by``.
        seconds: CPU seconds of the night.
    """

    number: int
    kind: Kind
    outcome: str
    why: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    parent: int
    current: int
    right: str
    alone: str = ""
    alone_by: tuple[str, ...] = ()
    seconds: float


def run_arm(out: Path, seed: int, arm: str, states: Sequence[EvaluationState]) -> None:
    """Run the nights of an arm that are not told yet."""
    import torch

    torch.set_num_threads(1)  # the same sums everywhere
    folder = out / RUNS / str(seed) / arm
    if not folder.is_dir():
        scratch = folder.with_name(f".{arm}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(out / DATA / str(seed) / "lake", scratch / "lake")
        scratch.replace(folder)
    made = Ungated if arm == "none" else Learner
    lake, learner = Lake(str(folder / "lake")), made(folder / "models")
    told = read_told(folder)
    right = {each.current: each.right for each in told}
    recipe = recipe_of_nights(seed)
    _read_once(lake)
    gc.freeze()  # each training collects garbage, among all that was read

    def tell(
        night: Planned, began: float, story: product.Night, alone: product.Night | None
    ) -> None:
        pointer = registry.current(lake)
        now = pointer.version if pointer else 0
        if now not in right:
            weights = pointer.weights if pointer else ""
            found = learner.answers(load_base(weights or str(base_dir()), recipe).eval(), states)
            right[now] = "".join(f"{found[state.state_id]:.0f}" for state in states)
        each = Told(
            number=night.number, kind=night.kind, outcome=story.outcome, why=story.why,
            by=_by(story), parent=now if story.parent is None else story.parent, current=now,
            right=right[now], alone=alone.outcome if alone else "",
            alone_by=_by(alone) if alone else (), seconds=round(time.process_time() - began, 2),
        )  # fmt: skip
        with (folder / TOLD).open("ab") as file:
            file.write(msgspec.json.encode(each) + b"\n")
        said = f"{each.outcome} {' '.join(each.by)}{f' (alone: {each.alone})' if alone else ''}"
        print(f"seed {seed} {arm}: night {night.number} of {NIGHTS}, {night.kind}: {said},"
              f" {each.seconds} CPU s", flush=True)  # fmt: skip

    if not told:
        tell(
            Planned(0, "usual", ()),
            time.process_time(),
            product.Night(night="", outcome="dry run"),
            None,
        )
    for night in planned(seed)[max(0, len(told) - 1) :]:
        began = time.process_time()
        alone = _alone(folder, night, seed, arm)
        story = product.run_night(
            lake, recipe, learner, folder / "work", night=night.day, rules=ARMS[arm]
        )
        if arm == "none" and story.version is not None:
            registry.promote(lake, story.version, "no gate")
        tell(night, began, story, alone)


def _read_once(lake: Lake) -> None:
    """Let nights have what they read of the dataset, which is the same every night, from memory."""
    held_out, own = select_states(lake), own_successes(lake)
    states, content = dataset_states(lake, str(date.max)), training_content(lake)
    vars(product).update(
        select_states=lambda *_: held_out,
        own_successes=lambda _: own,
        dataset_states=lambda _, night: {k: row for k, row in states.items() if row.day <= night},
        training_content=lambda of: content if of.url == lake.url else training_content(of),
    )


def _by(story: product.Night) -> tuple[str, ...]:
    """Return the canaries that held a night, or the gates that it did not pass."""
    held = tuple(canary.name for canary in story.canaries if canary.holds)
    return held or tuple(gate.name for gate in story.gates if not gate.passed)


def read_told(folder: Path) -> list[Told]:
    """Return what the nights of an arm did; a line that was cut off by a kill is left out."""
    path, whole = folder / TOLD, []
    if path.is_file():
        whole = [line for line in path.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"]
        replace(path, b"".join(whole).decode())
    return [msgspec.json.decode(line, type=Told) for line in whole]


def _alone(folder: Path, night: Planned, seed: int, arm: str) -> product.Night | None:
    """Return what gates without canaries decide about a bad night, on a copy of the lake."""
    path = folder / f"alone-{night.number}.json"
    if arm == "none" or night.kind not in ("poisoned", "wrong majority"):
        return None
    if not path.is_file():
        scratch = folder / "alone"
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(folder / "lake", scratch / "lake")
        rules = ARMS[arm].model_copy(update={"canaries": _OPEN})
        story = product.run_night(
            Lake(str(scratch / "lake")), recipe_of_nights(seed), Learner(scratch / "models"),
            scratch / "work", night=night.day, rules=rules,
        )  # fmt: skip
        replace(path, msgspec.json.encode(story).decode())
        shutil.rmtree(scratch)
    return msgspec.json.decode(path.read_bytes(), type=product.Night)


class Tested(msgspec.Struct, kw_only=True):
    """One test of noise: the share of answers that changed, p, and whether it was promoted."""

    seed: int
    changed: float
    p: float
    promoted: bool


def run_noise(out: Path, seed: int) -> None:
    """Ask the gate about a month of candidates that are their parent with noise on its weights."""
    import torch

    torch.set_num_threads(1)
    folder = out / RUNS / str(seed)
    if (folder / NOISE_FILE).is_file():
        return
    lake, learner = Lake(str(folder / "buffer" / "lake")), Learner(folder)
    _read_once(lake)  # an arm of another seed may have run in this process
    last, rules = planned(seed)[-1].day, ARMS["buffer"]
    rows = dataset_states(lake, last)
    held_out = product.held_out(lake, rows, product.history(lake, last))
    states = product.new_states(held_out, rows, rules)
    pointer = registry.current(lake)
    weights = pointer.weights if pointer else ""
    random = torch.Generator().manual_seed(seed)

    def answers(sigma: float) -> dict[str, float]:
        model = load_base(weights or str(base_dir()), recipe_of_nights(seed)).eval()
        with torch.no_grad():
            for tensor in model.parameters():
                tensor += sigma * tensor.std() * torch.randn(tensor.shape, generator=random)
        return learner.answers(model, states)

    before = answers(0.0)
    parent = {state.state_id: (state.session_id, before[state.state_id]) for state in states}
    found = []
    for _ in range(NIGHTS):
        candidate = answers(SIGMA)
        gate = better(candidate, parent, level=rules.gate.level)
        changed = sum(candidate[name] != before[name] for name in before) / len(before)
        found.append(Tested(seed=seed, changed=changed, p=gate.p or 1.0, promoted=gate.passed))
    replace(folder / NOISE_FILE, msgspec.json.encode(found).decode())


def simulated(changed: int, months: int = MONTHS) -> float:
    """Return the share of months in which the gate promotes an exchangeable candidate.

    In each of thirty tests about ``changed`` sessions have another answer, for better or worse.
    """
    level = NightRules().gate.level
    random = np.random.default_rng(changed)
    counts = random.poisson(changed, (months, NIGHTS))
    wins = random.binomial(counts, 0.5)
    known: dict[tuple[int, int], bool] = {}
    promoted = 0
    for month in range(months):
        for pair in zip(counts[month].tolist(), wins[month].tolist(), strict=True):
            if pair not in known:
                signs = [1.0] * pair[1] + [-1.0] * (pair[0] - pair[1])
                known[pair] = p_better({str(i): (str(i), v) for i, v in enumerate(signs)}) <= level
            if known[pair]:
                promoted += 1
                break
    return promoted / months


def in_processes(
    out: Path, seeds: Sequence[int], states: Sequence[EvaluationState], jobs: int
) -> None:
    """Run everything that is not there yet: a seed's data, then its arms, then its noise."""
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        try:
            made = {pool.submit(run_data, out, seed): seed for seed in seeds}
            arms: dict[Any, int] = {}
            for done in as_completed(made):
                done.result()
                seed = made[done]
                arms |= {pool.submit(run_arm, out, seed, arm, states): seed for arm in ARMS}
            left = Counter(arms.values())
            noise = []
            for done in as_completed(arms):
                done.result()
                left[arms[done]] -= 1
                if not left[arms[done]]:
                    noise.append(pool.submit(run_noise, out, arms[done]))
            for done in noise:
                done.result()
        except BrokenProcessPool as error:
            raise ComposerError(f"a process was ended; start it again: {error}") from error
        finally:
            pool.shutdown(cancel_futures=True)
