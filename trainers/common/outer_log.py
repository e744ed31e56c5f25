"""A run's outer log: where it is, and what replicas on other machines read from it and add to it.

Such a replica knows the log alone. It adds its events (``events/<slot>/<attempt>-<n>.jsonl``) and
its channels' states (``channels/<slot>/channels-<step>.safetensors``) before it contributes a
round. No torch.
"""

import hashlib
import shutil
from pathlib import Path
from typing import IO

import yaml

from composer_pipeline import __version__
from composer_pipeline.diloco import inputs
from composer_pipeline.diloco.inputs import Inputs
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.errors import InputError
from composer_pipeline.files import replace, writing
from composer_pipeline.training import events, run
from composer_pipeline.training.models import resolve_adapter
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import TRAINERS
from composer_pipeline.training.run import DATA, METRICS, Contents, require_continues

OWN_LOG, OWN_ID = "outer", "run"
BASE, START, AGREED = "base", "start", "agreed.yaml"


def place(recipe: TrainingRecipe, run_dir: Path) -> tuple[str, str]:
    """Return the URL of a run's log and the run's id in it."""
    options = recipe.diloco
    if not options.log:
        return str(run_dir / OWN_LOG), options.run_id or OWN_ID
    return options.log, options.run_id or run_dir.name


def spec_of(recipe: TrainingRecipe, digest: str) -> DiLoCoSpec:
    """Return what the replicas agree on, except what each finds itself."""
    changes: dict[str, object] = {"data_plan": digest, "software": software(recipe)}
    if not recipe.diloco.log:
        # A run folder that is full or gone fails the rest of the run too: waiting hides why.
        changes["store_patience_s"] = 0.0
    if recipe.keep_best:
        changes["kept_rounds"] = None
    return recipe.diloco.agreement(recipe.rounds, **changes)


def software(recipe: TrainingRecipe) -> str:
    """Return ``DiLoCoSpec.software`` of the trainer's interpreter.

    Without the local parts of versions: builds of torch for a CPU and for a GPU agree.
    """
    trainer = TRAINERS.get(recipe.trainer, "recipe field trainer")
    found = {"composer-pipeline": __version__, "code": run.code_digest(trainer)}
    found |= run.versions(recipe, trainer)
    return " ".join(f"{name} {v.partition('+')[0] or 'none'}" for name, v in found.items())


def take_up(recipe: TrainingRecipe, run_dir: Path, found: Contents, digest: str) -> None:
    """Fetch rows and scores of a run that was started under the same id."""
    if not recipe.diloco.log:
        return
    log = OuterLog.open(*place(recipe, run_dir))
    there = inputs.read(log)
    if there is not None:
        inputs.require_same(log, there, _found(found, digest))
        inputs.fetch(log, there, run_dir, below=(f"{DATA}/", f"{BASE}/"))


def begin(recipe: TrainingRecipe, run_dir: Path, found: Contents, digest: str) -> Inputs | None:
    """Put what other replicas need into the log; ``None`` where the log is the run's own."""
    if not recipe.diloco.log:
        return None
    log = OuterLog.open(*place(recipe, run_dir))
    log.probe()
    log.store.patience_s = recipe.diloco.store_patience_s
    known = {**_found(found, digest), "recipe": _hash(recipe.agreed())}
    there = inputs.read(log)
    if there is not None:
        inputs.require_same(log, there, known)
        return there
    own = found["model"]
    mine = Inputs(
        known,
        spec_of(recipe, digest).model_dump_json(),
        recipe.diloco.here,
        own["name"] if own["kind"] == "folder" else "",
    )
    return inputs.publish(log, mine, _files(recipe, run_dir, found))


def _found(found: Contents, digest: str) -> dict[str, str]:
    return {"dataset": digest, **{field: content["digest"] for field, content in found.items()}}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _files(recipe: TrainingRecipe, run_dir: Path, found: Contents) -> dict[str, Path]:
    """Return what others need, by path in their folder; none names a path of this machine."""
    names = {field: content["name"] for field, content in found.items()}
    files = {}
    if recipe.start_from and found["start_from"]["kind"] == "folder":
        names["start_from"] = START
        folder = resolve_adapter(recipe.start_from)
        files = {f"{START}/{p.name}": p for p in sorted(folder.iterdir()) if p.is_file()}
    public = recipe.model_dump(mode="json") | names
    public["diloco"] |= {"log": "", "run_id": "", "local_replicas": None, "place": None}
    public["backend"]["python"] = ""
    replace(run_dir / AGREED, yaml.safe_dump(public, sort_keys=False))
    rows = [*(run_dir / DATA).glob("*"), *(run_dir / BASE).glob("*.arrow")]
    kept = {str(p.relative_to(run_dir)): p for p in sorted(rows) if not p.name.startswith(".")}
    return {AGREED: run_dir / AGREED, **kept, **files}


class EventUploader:
    """Collects the events of a replica elsewhere and uploads them in order."""

    def __init__(self, log: OuterLog, slot: int, attempt: int) -> None:
        self._log, self._place = log, f"events/{slot}/{attempt}"
        self._lines: list[str] = []
        self._sent = 0

    def add(self, line: str) -> None:
        """Queue an event."""
        self._lines.append(line)

    def upload(self) -> None:
        """Upload the queued events."""
        if self._lines:
            self._sent += 1
            text = "".join(f"{line}\n" for line in self._lines)
            self._log.store.put(f"{self._place}-{self._sent:06d}.jsonl", text.encode())
            self._lines = []


def gather(recipe: TrainingRecipe, run_dir: Path, metrics: IO[bytes], step: int) -> None:
    """Copy other machines' events into ``metrics``, and the channels' states at ``step``."""
    if not recipe.diloco.log:
        return
    log = OuterLog.open(*place(recipe, run_dir))
    for entry in log.store.list("events"):
        for text in (log.store.get(entry.key) or b"").decode(errors="replace").splitlines():
            if (event := events.parse(text)) is not None:
                events.append(metrics, event)
    fetch_states(log, run_dir, step)


def fetch_states(log: OuterLog, run_dir: Path, step: int) -> None:
    """Download each slot's newest channel state not after ``step``, where it is missing here."""
    newest: dict[str, str] = {}
    for entry in log.store.list("channels"):  # in the order of steps
        _, slot, name = entry.key.split("/")
        if int(Path(name).stem.rpartition("-")[2]) <= step:
            newest[slot] = name
    for slot, name in newest.items():
        target = run_dir / "replicas" / f"slot-{slot}" / name
        if not target.is_file():
            log.store.download(f"channels/{slot}/{name}", target)


#: Folders copied to an extended run; claims and heartbeats are each run's own.
ROUNDS = ("state", "rounds")
#: What a replica resumes from besides the log.
OWN = ("channels-*.safetensors", "inner.safetensors")


def take_over(recipe: TrainingRecipe, run_dir: Path, base: str, rows: str) -> None:
    """Copy the run that a recipe extends, with its log, into a new run folder."""
    if not recipe.extends:
        return
    before = require_continues(recipe, base, rows)
    folder = Path(recipe.extends)
    here, there = place(recipe, run_dir), place(before, folder)
    if here == there:
        raise InputError(
            f"recipe field diloco.run_id: {here[1]} belongs to {folder.name}; an extended run needs"
            " another"
        )
    new = OuterLog.open(*here)
    if new.spec() is None:
        _copy_rounds(OuterLog.open(*there), new)
    with writing(f"run folder {run_dir}"):
        for slot in sorted(folder.glob("replicas/slot-*/")):
            target = run_dir / "replicas" / slot.name
            target.mkdir(parents=True, exist_ok=True)
            for file in (file for pattern in OWN for file in slot.glob(pattern)):
                _copy(file, target / file.name)
        _copy(folder / METRICS, run_dir / METRICS)


def _copy_rounds(old: OuterLog, new: OuterLog) -> None:
    """Copy states and rounds; each commit after everything it names."""
    keys = [entry.key for folder in ROUNDS for entry in old.store.list(folder)]
    commits = [f"rounds/{round_}/commit.json" for round_ in range(old.last_round() + 1)]
    there = {entry.key for folder in ROUNDS for entry in new.store.list(folder)}
    for key in [*(key for key in keys if key not in commits), *commits]:
        data = None if key in there else old.store.get(key)
        if data is not None:
            new.store.put(key, data)


def _copy(file: Path, target: Path) -> None:
    """Copy a file atomically, unless the target exists."""
    if file.is_file() and not target.exists():
        part = target.with_name(f".{target.name}.part")
        shutil.copyfile(file, part)
        part.replace(target)
