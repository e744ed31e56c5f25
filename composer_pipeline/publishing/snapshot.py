"""The files of a dataset as they are at one moment, on the local disk.

Belongs here: taking the files of a build, and keeping them from changing between gate and upload.
Does not belong here: how they were built, and whether they fit together (``publishing.dataset``).
"""

from dataclasses import dataclass
from pathlib import Path

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.publishing.changes import hashes_of
from composer_pipeline.publishing.dataset import Build, check_statistics, copy_file, read_build


@dataclass(frozen=True)
class DataFile:
    """A Parquet file: ``path`` in the repository, ``local`` on this disk, and its rows."""

    config: str
    split: str
    path: str
    local: Path
    rows: int


def snapshot(lake: Lake, folder: Path) -> tuple[Build, list[DataFile]]:
    """Take the files of the lake's build into ``folder``; return the build and them.

    A file of a local lake is linked, where the disk allows: a build that replaces it makes a new
    one. ``load_dataset`` fails on a split whose files hold no row, so there is no such file.

    Raises:
        InputError: the dataset has not been built, is half built, mixed or older than what it is
            made of, its statistics are of another build, or it has no pair.
    """
    build = read_build(lake)
    check_statistics(lake, build)
    found = take_files(lake, build, folder)
    if not any(file.config == "pairs" for file in found):
        raise InputError(f"lake {lake.url}: the dataset has no pair; nothing to publish")
    return build, found


def take_files(lake: Lake, build: Build, folder: Path) -> list[DataFile]:
    """Take the files of a build into ``folder``, as :func:`snapshot` does.

    Raises:
        InputError: one of them was built again meanwhile.
    """
    found = []
    for number, file in enumerate(build.files):
        local = folder / f"{number}.parquet"
        copy_file(lake, file, local)
        if hashes_of(local)[0] != file.sha256:
            raise InputError(
                f"lake {lake.url}: {file.name} was built again meanwhile; run this again"
            )
        found.append(DataFile(file.config, file.split, file.path, local, file.rows))
    return found
