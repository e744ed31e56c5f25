"""How much is uploaded again when a session is withdrawn from a dataset of 200 MB.

Groups of sessions with one system prompt and texts of their own are written as the dataset's pairs
by the lake's own writer, a row group for each group; the unmodified ``hf_xet`` uploads them to the
Hub of ``composer_pipeline.testing.hub``. Then one group goes: the file is written again without it,
brought to the Hub, and the past is purged. What counts are the bytes of the xorbs that ``hf_xet``
wrote. Beside it, the same rows as ``pyarrow`` writes them by default with zstd, which shows that
the measure can fail.

With ``--lake`` the same is measured on a lake's own dataset (``benchmarks/publish.py --keep DIR``
makes one of real sessions), copied, with the commands: ``publish``, ``withdraw`` of the session
with the median number of pairs, ``dataset``, ``publish``. There the whole commits count, card,
pictures and all configurations included.

Usage: ``python benchmarks/withdrawal.py [--megabytes 200] [--groups 58] [--lake DIR]``.
"""

import argparse
import os
import random
import shutil
import string
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ["HF_HUB_OFFLINE"] = "0"
os.environ["HF_HUB_DISABLE_XET"] = ""

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from composer_pipeline.dataset.build import build_dataset  # noqa: E402
from composer_pipeline.dataset.manifest import read_build  # noqa: E402
from composer_pipeline.lake.parquet import table_from_rows  # noqa: E402
from composer_pipeline.lake.schema import TABLES  # noqa: E402
from composer_pipeline.lake.store import Lake  # noqa: E402
from composer_pipeline.maintenance.forget import withdraw  # noqa: E402
from composer_pipeline.preferences.rules import GATES, PreferenceRules  # noqa: E402
from composer_pipeline.publishing.commit import commit_files, purge  # noqa: E402
from composer_pipeline.publishing.hub import (  # noqa: E402
    Content,
    Hub,
    Remote,
)
from composer_pipeline.publishing.publish import publish  # noqa: E402
from composer_pipeline.testing.hub.server import LoopbackHub  # noqa: E402

BAR = 0.20
REPO, ROWS = "bench/pairs", 12
TABLE = "dataset_pairs"


def group(number: int, characters: int) -> pa.Table:
    """Return the rows of a group of sessions: each turn's prompt begins with the one before."""
    drawn = random.Random(number)
    letters = string.ascii_letters + string.digits + "    "
    system = "".join(random.Random("system").choices(letters, k=20_000))
    prompt = [{"role": "system", "content": system}]
    rows = []
    for turn in range(ROWS):
        text = "".join(drawn.choices(letters, k=characters // ROWS))
        prompt = [*prompt, {"role": "user" if turn % 2 == 0 else "assistant", "content": text}]
        rows.append(
            {
                "pair_id": f"p{number}-{turn}",
                "state_id": f"s{number}-{turn}",
                "session_id": f"session-{number}",
                "group_id": f"{number:04d}",
                "prompt": prompt,
                "chosen": [{"role": "assistant", "content": text[:200]}],
                "rejected": [{"role": "assistant", "content": text[200:400]}],
                "tools": [],
                "day": "2026-11-16",
                "simulated": True,
            }
        )
    return table_from_rows(TABLES[TABLE], rows)


def write(lake: Lake, groups: list[int], characters: int, *, by_group: bool) -> Path:
    """Write the file of these groups, and return it."""
    path = Path(lake.path(TABLE, split="train"))
    tables = (group(number, characters) for number in groups)
    if not by_group:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables(tables), path, compression="zstd")
        return path
    writer = lake.writer(TABLE, split="train")
    for table in tables:
        writer.write_group(table)
    writer.commit()
    return path


def uploaded(folder: Path, groups: int, megabytes: int, *, by_group: bool) -> dict[str, Any]:
    """Publish, withdraw one group of the middle, and return the bytes of both uploads."""
    # Six of eight bits of a letter are drawn, which zstd finds.
    characters = int(megabytes * 1e6 / groups / 0.76)
    sizes = []
    with (
        LoopbackHub(xet=folder / "xet") as hub,
        Hub(REPO, hub.token, hub.endpoint, "dataset") as client,
    ):
        lake = Lake(folder / "lake")
        every = list(range(groups))
        for kept in (every, [number for number in every if number != groups // 2]):
            file = write(lake, kept, characters, by_group=by_group)

            def prepare(_: Remote, file: Path = file) -> Mapping[str, Content]:
                return {"data/pairs/train.parquet": file}

            done = commit_files(client, prepare, lambda *_: False, private=True, dry_run=False)
            sizes.append((file.stat().st_size, hub.xet.stored_bytes()))
        began = time.monotonic()
        purged = purge(client, done.head)
        left = [commit.message for commit in hub.repos[REPO].every]
    (size, first), (_, both) = sizes
    return {
        "file_mb": size / 1e6,
        "first_mb": first / 1e6,
        "again_mb": (both - first) / 1e6,
        "share": (both - first) / size,
        "purge_s": time.monotonic() - began,
        "objects": purged.objects,
        "commits": len(left),
    }


def with_the_commands(source: Path, folder: Path) -> dict[str, Any]:
    """Publish a copy of a lake, withdraw a session of it, publish again; return the bytes."""
    shutil.copytree(source, folder / "lake")
    lake = Lake(folder / "lake")
    build_dataset(lake, rules=PreferenceRules(accept=GATES))
    pairs = Counter(row["session_id"] for row in lake.rows(TABLE, columns=["session_id"]))
    session = sorted(pairs, key=lambda name: (pairs[name], name))[len(pairs) // 2]
    with LoopbackHub(xet=folder / "xet") as hub:
        os.environ |= {"HF_TOKEN": hub.token, "HF_HOME": str(folder / "home")}

        def publication() -> tuple[int, int]:
            publish(lake, REPO, allow_simulated=True, endpoint=hub.endpoint)
            files = sum(file.bytes for file in read_build(lake).files)
            return files, hub.xet.stored_bytes()

        first, before = publication()
        withdraw(lake, session=session)
        build_dataset(lake, rules=PreferenceRules(accept=GATES))
        began = time.monotonic()
        second, after = publication()
    return {
        "pairs": pairs[session],
        "sessions": len(pairs),
        "first_mb": first / 1e6,
        "second_mb": second / 1e6,
        "again_mb": (after - before) / 1e6,
        "share": (after - before) / second,
        "seconds": time.monotonic() - began,
    }


def main() -> int:
    """Print both layouts; exit 1 above the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--groups", type=int, default=58)
    parser.add_argument("--lake", type=Path, help="measure on a lake's dataset instead")
    options = parser.parse_args()
    if options.lake:
        with tempfile.TemporaryDirectory(prefix="bench-withdrawal-") as folder:
            found = with_the_commands(options.lake, Path(folder))
        print(
            "sessions with pairs {sessions}, of the withdrawn one {pairs}; files {first_mb:.1f}, "
            "then {second_mb:.1f} MB; uploaded again {again_mb:.1f} MB ({share:.1%}); second "
            "publication {seconds:.0f} s".format(**found)
        )
        print(f"bar: at most {BAR:.0%}: {'kept' if found['share'] <= BAR else 'MISSED'}")
        return 0 if found["share"] <= BAR else 1
    print("layout               file MB  first MB  again MB  again/file  purge s  objects  commits")
    shares = {}
    for name, by_group in (("row group a group", True), ("pyarrow's default", False)):
        with tempfile.TemporaryDirectory(prefix="bench-withdrawal-") as folder:
            found = uploaded(Path(folder), options.groups, options.megabytes, by_group=by_group)
        shares[name] = found["share"]
        print(
            f"{name:20} {found['file_mb']:8.1f} {found['first_mb']:9.1f} {found['again_mb']:9.1f}"
            f" {found['share']:11.1%} {found['purge_s']:8.1f} {found['objects']:8} "
            f"{found['commits']:8}",
            flush=True,
        )
    ok = shares["row group a group"] <= BAR
    print(f"bar: at most {BAR:.0%} uploaded again: {'kept' if ok else 'MISSED'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
