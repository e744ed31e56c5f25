"""What channels know besides the parameters: SDPO's averaged teacher, TAID's schedule.

Belongs here: a replica's files of it, which a restart and the checkpoint read, and that of an
earlier run that this one starts from. Does not belong here: the outer log, which holds what
replicas share, and what only the replica itself goes on from (``composer_pipeline.diloco.inner``).

A state is written before its round is contributed, so that every committed round has one: a kill
between the two leaves a state of a round that will be trained again, and is not read. Channels
without a state of their own write no file.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.files import replace
from composer_pipeline.training.models import resolve_adapter
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.trl.outer_log import Courier, fetch_states

if TYPE_CHECKING:  # channels load TRL, which a checkpoint's writer does not need
    from trainers.trl.channels.base import Channel

#: In a checkpoint.
FILE = "channels.safetensors"
#: Rounds of which a replica keeps its state: the committed one and the one that it contributes.
KEPT = 2


class ChannelStates:
    """The states of one replica's channels, round by round.

    Args:
        run_dir: the run's folder.
        slot: 0-based replica.
        keep_all: keep the state of every round, not of the last two.
        first: an earlier run's state to begin with, where there is one.
        log: an outer log that other machines reach, which has the states too.
        courier: what it has been told goes into the log with each state.
    """

    def __init__(
        self, run_dir: Path, slot: int, *, keep_all: bool = False, first: Path | None = None,
        log: OuterLog | None = None, courier: Courier | None = None,
    ) -> None:  # fmt: skip
        self._run_dir, self._slot, self._keep_all, self._first = run_dir, slot, keep_all, first
        self._log, self._courier = log, courier

    def save(self, channels: "Sequence[Channel[Any]]", step: int) -> None:
        """Write the channels' states as they are after ``step`` steps of the run."""
        if self._courier is not None:
            self._courier.deliver()
        tensors, numbers = gathered(channels)
        if not tensors and not numbers:
            return
        file = _folder(self._run_dir, self._slot) / f"channels-{step:08d}.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        replace(file, save(tensors, {"numbers": json.dumps(numbers)}))
        if not self._keep_all:
            for old in sorted(file.parent.glob("channels-*.safetensors"))[:-KEPT]:
                old.unlink()
        if self._log is not None:
            self._store(file)

    def _store(self, file: Path) -> None:
        """Put a state into the log, and drop those that nobody goes on from any more."""
        assert self._log is not None
        store, folder = self._log.store, f"channels/{self._slot}"
        store.upload(f"{folder}/{file.name}", file)
        if not self._keep_all:
            for old in store.list(folder)[:-KEPT]:
                store.delete(old.key)

    def load(self, channels: "Sequence[Channel[Any]]", step: int) -> bool:
        """Restore the newest state that is not after ``step``; return whether there was one.

        Its own; that of another replica where it has none of that step; the earlier run's where
        the run has none at all.
        """
        if self._log is not None:
            fetch_states(self._log, self._run_dir, step)
        file = state_file(self._run_dir, step, prefer=self._slot) or self._first
        if file is None:
            return False
        with safe_open(str(file), framework="pt") as source:
            numbers = json.loads(source.metadata()["numbers"])
            tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
        handed_out(channels, tensors, numbers)
        return True


def gathered(channels: "Sequence[Channel[Any]]") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the channels' states as one: tensors by ``<channel>/<name>``, numbers by channel."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for channel in channels:
        own, plain = channel.state()
        tensors |= {f"{channel.name}/{name}": t.contiguous() for name, t in own.items()}
        if plain:
            numbers[channel.name] = plain
    return tensors, numbers


def handed_out(
    channels: "Sequence[Channel[Any]]", tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    """Give each channel its part of what :func:`gathered` returned."""
    for channel in channels:
        prefix = f"{channel.name}/"
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        channel.load_state(own, numbers.get(channel.name, {}))


def state_file(run_dir: Path, step: int, *, prefer: int = 0) -> Path | None:
    """Return the newest state of a run that is not after ``step``, or ``None``.

    Of equally new ones that of slot ``prefer``, else of the lowest slot.
    """
    found = [
        (int(path.stem.rpartition("-")[2]), int(path.parent.name.rpartition("-")[2]), path)
        for path in _folder(run_dir, "*").parent.glob("slot-*/channels-*.safetensors")
    ]
    known = [(done, slot == prefer, -slot, path) for done, slot, path in found if done <= step]
    return max(known)[-1] if known else None


def earlier_state(recipe: TrainingRecipe) -> Path | None:
    """Return the state that lies beside the adapter of ``start_from``, or ``None``.

    Raises:
        InputError: there is no such adapter.
    """
    if not recipe.start_from:
        return None
    file = resolve_adapter(recipe.start_from) / FILE
    return file if file.is_file() else None


def _folder(run_dir: Path, slot: int | str) -> Path:
    return run_dir / "replicas" / f"slot-{slot}"
