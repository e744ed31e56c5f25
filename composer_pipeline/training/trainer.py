"""The trainer contract: what a training backend says about itself.

Belongs here: the protocol and capabilities. Does not belong here: which trainers there are
(``training.registry``), and training. Importing this module loads no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

#: ``exact``: the formula itself. ``sampled``: an unbiased estimate from sampled tokens.
#: ``surrogate``: another objective in its place, such as a policy gradient on recorded answers.
Fidelity = Literal["exact", "sampled", "surrogate"]


@dataclass(frozen=True)
class Capabilities:
    """What a trainer can do.

    Attributes:
        channels: the channels of the composer loss that it carries; others it cannot.
        diloco: it can run as several replicas.
        modules: modules that must be importable, with the line that installs them.
    """

    channels: Mapping[str, Fidelity]
    diloco: bool
    modules: Mapping[str, str]


@runtime_checkable
class Trainer(Protocol):
    """A training backend, run as a command of its own process."""

    name: str

    def capabilities(self) -> Capabilities:
        """Say what the trainer can carry."""
        ...

    def command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return the command that trains; it must write the run folder's contract."""
        ...

    def code(self) -> Sequence[Path]:
        """Return the trainer's own files, and folders whose every ``*.py`` file counts.

        A run is used again only while they are as they were, so name all that decides what
        comes out; what a trainer imports from ``composer_pipeline`` is counted without it.
        ``[Path(__file__).parent]`` is right for a trainer that is a package.
        """
        ...


@runtime_checkable
class Merger(Protocol):
    """What a trainer may have besides: base and adapter of a finished run as one model."""

    def merge_command(self, python: str, run_dir: Path) -> Sequence[str]:
        """Return the command that writes ``merged/`` into a run folder, whole or not at all."""
        ...


@runtime_checkable
class Planner(Protocol):
    """What a trainer may have besides: what a run will need, before it starts."""

    def plan_command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return the command that prints one event ``plan`` with the fields of ``PlanReport``.

        It takes ``--probe``, ``--memory-gib N`` and ``--model-config FILE`` besides.
        """
        ...
