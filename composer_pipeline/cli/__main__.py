"""The command line: parse options, call one stage function, print its report.

With ``--json`` standard output holds one JSON object; progress goes to standard error.
Exit codes: 0 done, 2 bad usage or input, 3 budget exhausted, 1 anything else.
"""

import os
import sys
from collections.abc import Sequence

import cyclopts
from rich.console import Console

from composer_pipeline.cli import (
    dataset,
    maintenance,
    preferences,
    setup,
    teachers,
    traces,
    training,
)
from composer_pipeline.cli.common import app
from composer_pipeline.errors import BudgetExhausted, ComposerError, InputError
from composer_pipeline.lake.place import bucket_errors
from composer_pipeline.settings import load_env_file

#: Importing a module registers its commands.
COMMANDS = (setup, traces, teachers, maintenance, preferences, dataset, training)

#: The commands as ``--help`` lists them, in the order in which they are first used.
PARTS = {
    "Data": ("init", "ingest", "status", "sessions", "states", "state", "outcomes"),
    "Money": ("plan", "preview", "replay", "budget"),
    "Preferences": ("pairs", "pair", "label", "statistics", "sufficiency", "compare"),
    "Dataset": ("normalize", "dataset", "report", "view", "export", "publish"),
    "Training": ("train", "replicas", "evaluate", "environment"),
    "Maintenance": ("doctor", "verify", "reparse", "forget", "withdraw", "redact"),
}
for _position, (_title, _names) in enumerate(PARTS.items()):
    _part = cyclopts.Group(_title, sort_key=_position)
    for _order, _name in enumerate(_names):
        app[_name].group = (_part,)
        app[_name].sort_key = _order
app.register_install_completion_command()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    if arguments is None:
        load_env_file()
    try:
        app(
            list(arguments) if arguments is not None else None,
            console=Console(),  # new, since the terminal may have been resized
            exit_on_error=False,
            print_error=False,
        )
    except cyclopts.CycloptsError as error:
        _fail(str(error).strip().splitlines()[-1] or "bad usage", 2)
    except InputError as error:
        _fail(str(error), 2)
    except BudgetExhausted as error:
        _fail(str(error), 3)
    except ComposerError as error:
        _fail(str(error), 1)
    except bucket_errors() as error:
        _fail(f"the lake's bucket failed: {str(error).partition(chr(10))[0][:200]}", 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"composer-pipeline: {message}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
