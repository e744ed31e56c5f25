"""One process of the chaos test: it replays, until it is done or killed.

Run by ``chaos_driver``; its one argument is a JSON object.
"""

import json
import sys
from decimal import Decimal
from pathlib import Path

from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.store import Lake
from composer_pipeline.replay.engine import replay
from composer_pipeline.replay.teachers import TeacherSet
from composer_pipeline.traces import load, redaction  # noqa: F401  not while the clock runs


def main() -> None:
    """Replay once; print ``ready``, then the report or the error as one JSON line."""
    options = json.loads(sys.argv[1])
    teachers = TeacherSet.model_validate_json(Path(options["teachers"]).read_text())
    print("ready", flush=True)
    try:
        report = replay(
            Lake(options["lake"]),
            teachers,
            max_usd=Decimal(options["usd"]),
            run_id=options["run"],
            ledger=options["ledger"],
        )
    except ComposerError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(1)
    print(report.to_json(), flush=True)


if __name__ == "__main__":
    main()
