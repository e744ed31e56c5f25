"""What the viewer costs: opening, filtering and searching 20,000 states, and the size of a bundle.

The lake is that of the sample sessions, asked and paired (one day of it), copied into the past with
ids of its own until it has 20,000 states, and so are its replies, votes, pairs, hints and dataset.
Of the real sessions of ``../shared/corpus``, where they are, five copies are ingested: more text,
and no answers. The floor is DuckDB reading the columns of the list, or every message, and no more.

    python benchmarks/view.py [--states N] [--record]
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path

import pages
import pyarrow as pa
import pyarrow.compute as pc
from shared_corpus import SHARED, source_files
from traces import renewed

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed

from composer_pipeline.lake.schema import TABLES  # noqa: E402
from composer_pipeline.lake.store import Lake  # noqa: E402
from composer_pipeline.traces.ingest import ingest  # noqa: E402
from composer_pipeline.view.site import Site, write_bundle  # noqa: E402
from tests.fixtures.whole_lake import make_whole_lake  # noqa: E402

PAGE = Path(__file__).parent / "results" / "view.md"
IDS = ("state_id", "session_id", "pair_id", "chain_id", "culprit_state_id", "caused_error",
       "fixed_by", "fix_verified_by", "error_state_id", "group_id", "near")  # fmt: skip
QUERIES: dict[str, dict[str, list[str]]] = {
    "all": {},
    "one tool": {"tool": ["Bash"]},
    "one day": {"day": ["2026-11-16"]},
    "pairs that failed": {"made": ["pair"], "outcome": ["a call failed"]},
    "no pair, by reason": {"reason": ["agrees_with_student", "no_quorum"]},
}
WORDS = ("import", "git commit", "no such words are here")


def copied(source: Lake, target: Lake, copies: int) -> None:
    """Write copies of a lake's rows, each with ids and days of its own."""
    for name, spec in TABLES.items():
        for part in source.partitions(name):
            table = source.read(name, **{k: v for k, v in part.items() if k != "day"})
            if "day" in part:
                table = table.filter(pc.equal(table["day"], part["day"]))
            for key in spec.partition_keys:
                table = table.drop([key])
            pieces: list[pa.Table] = []
            for copy in range(copies):
                piece = _renamed(table, copy)
                if "day" not in part:
                    pieces.append(piece)
                    continue
                day = date.fromisoformat(part["day"]) - timedelta(days=4 * copy)
                target.write(name, piece, **{**part, "day": str(day)})
            if pieces:
                target.write(name, pa.concat_tables(pieces).cast(spec.schema), **part)


def _renamed(table: pa.Table, copy: int) -> pa.Table:
    for at, name in enumerate(table.schema.names):
        if name in IDS and copy:
            column = pc.binary_join_element_wise(
                f"{copy:04x}", pc.utf8_slice_codeunits(table[name].cast(pa.string()), 4), ""
            )
            table = table.set_column(at, table.schema.field(name), column)
    return table


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def floor(lake: Lake, what: str) -> float:
    """Return the CPU seconds that DuckDB takes to read columns and to do nothing with them."""
    columns = "state_id, session_id, day, turn, ts, project, error_kind, verdict, action"
    sql = {"list": f"SELECT count(COLUMNS(*)) FROM (SELECT {columns} FROM states)",
           "text": "SELECT sum(length(json)) FROM messages"}[what]  # fmt: skip
    return timed(lambda: lake.query(sql))[1]


def measured(title: str, lake: Lake) -> Iterator[str]:
    """Yield the rows of a table: opening, filtering, searching."""
    lake.query("SELECT 1")  # importing DuckDB is not what is measured
    base = {what: floor(lake, what) for what in ("list", "text")}
    site = Site(lake, Path(lake.root) / "runs")
    wall, cpu = timed(lambda: site.page("rows", {}))
    total = site.page("rows", {})["total"]
    yield f"| {title}: open, to the first page | {total:,} | {wall * 1000:,.0f} | {cpu:.2f} |" \
          f" {cpu / base['list']:.1f} |"  # fmt: skip
    worst = []
    for query in QUERIES.values():
        both = [
            timed(lambda q=query: (site.page("rows", q), site.page("facets", q)))[0]  # type: ignore[misc]
            for _ in range(5)
        ]
        worst.append(statistics.median(both))
    yield f"| {title}: filter, with every count; slowest of {len(QUERIES)}, median of five | |" \
          f" {max(worst) * 1000:,.0f} | | |"  # fmt: skip
    wall, cpu = timed(lambda: site.page("rows", {"q": [WORDS[0]]}))
    yield f"| {title}: first search, which reads every text | | {wall * 1000:,.0f} | {cpu:.2f} |" \
          f" {cpu / base['text']:.1f} |"  # fmt: skip
    again = [timed(lambda w=w: site.page("rows", {"q": [w]}))[0] for w in WORDS[1:]]  # type: ignore[misc]
    yield f"| {title}: a further search, slower of {len(again)} | | {max(again) * 1000:,.0f} | | |"
    site.close()


def main() -> None:
    """Measure and print."""
    parser = pages.options(__doc__, PAGE)
    parser.add_argument("--states", type=int, default=20_000)
    given = parser.parse_args()
    lines = [
        "# The viewer",
        "",
        "| | states | ms | CPU s | times the floor |",
        "|---|---|---|---|---|",
    ]
    sizes = ["", "| bundle | states | bytes | CPU s |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="view-") as name:
        folder = Path(name)
        sample = Lake(make_whole_lake(folder))
        states = int(sample.query("SELECT count(*) FROM states")[0][0])
        big = Lake(folder / "big")
        copied(sample, big, -(-given.states // states))
        lines += list(measured("sample sessions", big))
        some = Lake(folder / "some")
        copied(sample, some, -(-2000 // states))
        for title, lake in (("sample sessions", sample), ("ten copies of them", some)):
            site = Site(lake, Path(lake.root) / "runs")
            made: list[object] = []
            out = folder / f"bundle-{len(sizes)}"
            cpu = timed(lambda: made.append(write_bundle(site, out)))[1]  # noqa: B023
            size = sum(path.stat().st_size for path in out.rglob("*.*"))
            count = sum(row["states"] for row in site.rows().sessions())
            sizes.append(f"| {title} | {count:,} | {size:,} | {cpu:.1f} |")
            site.close()
        if SHARED.is_dir():
            real, _ = source_files(None)
            for copy in range(5):
                for path in real.rglob("*.jsonl"):
                    new = renewed(str(path.relative_to(real)).encode(), copy).decode()
                    to = folder / "sessions" / str(copy) / new
                    to.parent.mkdir(parents=True, exist_ok=True)
                    to.write_bytes(renewed(path.read_bytes(), copy))
            lake = Lake(folder / "real")
            ingest(lake, [folder / "sessions"])
            lines += measured("real sessions", lake)
    pages.show("\n".join([*lines, *sizes, ""]), PAGE, given)


if __name__ == "__main__":
    main()
