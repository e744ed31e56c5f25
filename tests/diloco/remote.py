"""What tests of replicas on other machines share: an image, a run of one replica, an end."""

from pathlib import Path
from typing import Any

from composer_pipeline.diloco.places.job import Place
from composer_pipeline.diloco.spec import DiLoCoSpec
from composer_pipeline.diloco.supervisor import Supervisor
from tests.fixtures.waiting import wait_until

SPEC = DiLoCoSpec(rounds=1, inner_steps=1, replicas=1)


class Scripted:
    """A service with an image in which a test writes what a job runs as its replica."""

    cwd: Path

    def script(self, text: str) -> None:
        """Write it."""
        (self.cwd / "trainers" / "replica.py").write_text(text)


def image(folder: Path) -> Path:
    """Return a folder with the package that a replica's module lies in."""
    package = folder / "image" / "trainers"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return folder / "image"


def supervisor(tmp_path: Path, place: Place, **options: Any) -> Supervisor:
    """Return what runs one replica at a place, with its log in a folder."""
    return Supervisor(
        url=str(tmp_path / "outer"), run_id="run", spec=SPEC, commands=[], places=[place],
        run_dir=tmp_path / "replicas", **({"timeout_s": 60} | options),
    )  # fmt: skip


def ended(job: Any) -> int:
    """Return a job's exit code, once it has one."""
    wait_until(lambda: job.poll() is not None, "the job has ended")
    code: int = job.poll()
    return code
