"""Importing the code location stays light: every code server and run pays for it."""

import json
import subprocess
import sys

HEAVY = ["torch", "trl", "transformers", "datasets", "data_juicer", "ray", "peft", "accelerate"]


def loaded(statement: str) -> set[str]:
    found = f"[m for m in {HEAVY!r} if m in sys.modules]"
    code = f"import json, sys\n{statement}\nprint(json.dumps({found}))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(out.stdout.splitlines()[-1]))


def test_definitions_load_no_heavy_module() -> None:
    assert loaded("import assets.definitions as d; d.build_defs()") == set()


def test_library_and_cli_load_no_heavy_module() -> None:
    assert (
        loaded("import composer_pipeline.cli.__main__, composer_pipeline.maintenance.doctor")
        == set()
    )


def test_probe_sees_a_heavy_module() -> None:
    assert loaded("import datasets") == {"datasets"}


def test_library_never_imports_dagster() -> None:
    code = (
        "import sys, pkgutil, importlib, composer_pipeline\n"
        "skip = ('.losses', '.diloco', 'worker', '__main__')\n"
        "for m in pkgutil.walk_packages(composer_pipeline.__path__, 'composer_pipeline.'):\n"
        "    if not any(s in m.name for s in skip): importlib.import_module(m.name)\n"
        "assert 'dagster' not in sys.modules and 'assets' not in sys.modules, 'dagster'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
