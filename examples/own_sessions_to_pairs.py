"""Sessions in, preference pairs out: ``python -m examples.own_sessions_to_pairs [FOLDER]``.

Reads FOLDER (``~/.claude/projects``, say; the bundled sessions without it) and asks four
simulated teachers on this machine, so it needs no key and spends nothing. One sees the price
before the purchase, what was bought under the ceiling, and one pair with its reason.
For real replies, load ``recipes/teachers/default.yaml`` and set OPENROUTER_API_KEY.
"""

import sys
from decimal import Decimal
from tempfile import TemporaryDirectory

from composer_pipeline import (
    Lake,
    TeacherSet,
    build_hints,
    build_pairs,
    explain,
    ingest,
    plan,
    replay,
)
from composer_pipeline.testing.samples import sample_sessions_dir
from examples.demo.profile import loopback


def main(folder: str) -> None:
    """Take the sessions of a folder to pairs, in a lake that is thrown away."""
    with TemporaryDirectory() as place, loopback():
        lake = Lake(place)  # or Lake("lake"), Lake("s3://bucket/lake")
        teachers = TeacherSet.load("recipes/teachers/demo.yaml")
        print("states:", ingest(lake, [folder]).totals["distinct_states"])
        print(f"worst case: {plan(lake, teachers).worst_usd:.4f} USD (simulated)")
        bought = replay(lake, teachers, max_usd=Decimal("1.00"))
        print(f"replies: {bought.replies} for {bought.spent_usd:.4f} USD (simulated)")
        print("hints:", build_hints(lake).hints)
        pairs = build_pairs(lake)
        print("pairs:", pairs.pairs, pairs.by_tier)
        rows = lake.rows("pairs", columns=["pair_id", "source"])
        for row in [row for row in rows if row["source"] == "teachers"][:1]:
            print("one of them:", explain(lake, row["pair_id"])["why"])


if __name__ == "__main__":
    main(*sys.argv[1:2] or [str(sample_sessions_dir())])
