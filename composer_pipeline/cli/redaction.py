"""Commands of the redaction room: redact."""

import json
import sys
from pathlib import Path

from rich.console import Console

from composer_pipeline.cli.common import JsonOption, app
from composer_pipeline.cli.views.table import Table
from composer_pipeline.errors import InputError


@app.command
def redact(file: Path, /, *, as_json: JsonOption = False) -> None:
    """Print what redaction would replace in a file, and why; nothing is changed.

    Args:
        file: any text; of a session (.jsonl) or a .json file, the decoded strings.
    """
    from composer_pipeline.redaction import explain_file

    try:
        found = explain_file(file)
    except OSError as error:
        raise InputError(f"FILE {file}: {error.strerror}") from error
    if as_json:
        report = {
            "file": str(file),
            "counts": found.counts,
            "replacements": [r.to_dict() for r in found.replacements],
        }
        sys.stdout.write(json.dumps(report, ensure_ascii=False) + "\n")
        return
    table = Table("place", "rule", "what", "becomes")
    for r in found.replacements:
        table.add_row(r.place, r.rule, f"{r.shown} ({r.length})", r.new)
    console = Console()
    console.print(table, markup=False) if found.replacements else None
    told = ", ".join(f"{kind} {count}" for kind, count in sorted(found.counts.items()))
    console.print(told or "nothing would be replaced", markup=False)
