"""What travels to a lent machine, and what comes back."""

import subprocess
from pathlib import Path

import pytest

from scripts import gpu_day
from tests.places import ROOT

LOG = """\
bytes a token: {8192: 17516}
fp32 relative errors of loss and gradient: {'on': (1e-7, 3e-6)}
FAILED tests/gpu/test_step.py::test_x
================ 1 failed, 23 passed in 56.85s ================
"""


def test_every_wheel_has_a_pin_and_every_path_is_there():
    pinned = gpu_day.pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert set(pinned) == set(gpu_day.WHEELS)
    assert all((ROOT / path).exists() for path in gpu_day.TREE)


@pytest.mark.parametrize(("limit", "code", "said"), [(2**26, 0, "fits"), (9, 1, "does not fit")])
def test_sizes_are_printed_and_compared(monkeypatch, capsys, limit, code, said):
    run = subprocess.run

    def without_a_network(command, **options):
        if "pip" not in command:
            return run(command, **options)
        wheels = next(part for part in command if part.startswith("--dest=")).removeprefix(
            "--dest="
        )
        (Path(wheels) / "x.whl").write_bytes(bytes(2**20))
        return None

    monkeypatch.setattr(subprocess, "run", without_a_network)
    monkeypatch.setattr(gpu_day, "TREE", ("recipes",))
    monkeypatch.setattr(gpu_day, "LIMIT", limit)
    assert gpu_day.main(["--dry-run"]) == code
    out = capsys.readouterr().out
    assert "wheels      1.0 MiB" in out
    assert f": {said}\n" in out
    assert "bash run.sh OUT" in out


def test_what_came_back_is_a_page(tmp_path):
    (tmp_path / "machine.txt").write_text("NVIDIA X, torch 2.11\n")
    (tmp_path / "tests.log").write_text(LOG)
    text, failed = gpu_day.record(tmp_path)
    assert failed
    assert "prepares: NVIDIA X, torch 2.11." in text
    assert "\n1 failed, 23 passed in 56.85s\n" in text
    assert "8192: 17516" in text
    assert "FAILED tests/gpu/test_step.py::test_x" in text
    (tmp_path / "tests.log").write_text("24 passed in 1s\n")
    assert not gpu_day.record(tmp_path)[1]
    (tmp_path / "tests.log").write_text("killed\n")
    text, failed = gpu_day.record(tmp_path)
    assert failed
    assert "\nThe tests did not end.\n" in text
