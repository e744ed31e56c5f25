"""The second scanner looks at what was stored; its counts stand on the card, its finds nowhere."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from composer_pipeline import ingest
from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.provenance import build_id
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.withdrawn import add_withdrawal, digest_of, publications, releases_of
from composer_pipeline.states.second_look import look_in_background, second_look
from composer_pipeline.testing.hub.server import LoopbackHub
from tests.fixtures.sessions import Script
from tests.publishing.conftest import REPO, fill, row, send

DAY = "2026-11-16"
ODD = "odd-zebra-9981-quagga"


class Scanner:
    """Takes one word for a secret, and counts the texts."""

    __spec__ = object()

    def __init__(self) -> None:
        self.texts = 0

    def scan_string(self, text: str) -> list[SimpleNamespace]:
        self.texts += 1
        return [SimpleNamespace(secret=ODD, rule_id="odd-key")] if ODD in text else []


@pytest.fixture
def scanner(monkeypatch: pytest.MonkeyPatch) -> Scanner:
    made = Scanner()
    monkeypatch.setitem(sys.modules, "betterleaks", made)
    monkeypatch.setenv("COMPOSER_SECOND_SCANNER", "on")
    return made


@pytest.fixture
def stored(lake: Lake, tmp_path: Path) -> Lake:
    """The dataset's lake, with messages of its day."""
    s = Script("s1", cwd="/srv/shop")
    s.user(f"use {ODD} please, {ODD} it is")
    s.call("m1", "t1", "Bash", command="ls")
    s.result("t1", f"README {ODD}")
    s.say("m2", "Done.")
    s.write(tmp_path / "sessions")
    ingest(lake, [tmp_path / "sessions"])
    (day,) = lake.days("messages")
    for split, number in (("train", 0), ("validation", 9)):
        lake.write("dataset_pairs", [row(number, split, day=day)], split=split)
    return fill(lake, [row(0, "train", day=day)], [row(9, "validation", day=day)])


def card(hub: LoopbackHub) -> str:
    return hub.repos[REPO].head.files["README.md"].decode()


def test_it_counts_distinct_values_by_kind_and_looks_once(stored: Lake, scanner: Scanner) -> None:
    assert second_look(stored) == {"ODD_KEY": 1}
    before = scanner.texts
    assert before
    assert second_look(stored) == {"ODD_KEY": 1}
    assert scanner.texts == before
    assert second_look(stored, ["2020-01-01"]) == {}
    kept = list((Path(stored.root) / "second_look").iterdir())
    assert kept
    assert not any(ODD in path.read_text() for path in kept)


def test_its_counts_stand_on_the_card_of_a_private_publication(
    stored: Lake, hub: LoopbackHub, scanner: Scanner
) -> None:
    report = send(stored, hub)
    assert report.second_look == {"ODD_KEY": 1}
    assert "found 1 distinct values in the messages of these days (`ODD_KEY` 1)" in card(hub)
    assert ODD not in card(hub)


@pytest.mark.parametrize("why", ["off", "missing"])
def test_without_it_nothing_fails_and_one_line_says_so(
    why: str, stored: Lake, hub: LoopbackHub, scanner: Scanner, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if why == "off":
        monkeypatch.setenv("COMPOSER_SECOND_SCANNER", "off")
    else:
        monkeypatch.setitem(sys.modules, "betterleaks", None)
    report = send(stored, hub)
    assert "not made" in str(report.second_look)
    assert "No second scanner has looked" in card(hub)
    with pytest.raises(SystemExit) as ended:
        main(["export", "--format", "pi", "--out", str(tmp_path / "o"), "--lake", stored.url])
    assert ended.value.code == 0
    assert "not made" in capsys.readouterr().out
    assert scanner.texts == 0


def test_an_export_has_them_too(
    stored: Lake, scanner: Scanner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--format", "pi", "--out", str(tmp_path / "o"), "--lake", stored.url])
    assert "ODD_KEY: 1" in capsys.readouterr().out


def test_ingest_looks_in_a_process_that_it_does_not_wait_for(
    stored: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("betterleaks")
    monkeypatch.setenv("COMPOSER_SECOND_SCANNER", "on")
    look_in_background(stored)
    deadline = time.monotonic() + 60
    folder = Path(stored.root) / "second_look"
    while not list(folder.glob("*.json")) and time.monotonic() < deadline:
        time.perf_counter()
    assert len(list(folder.glob("*.json"))) == len(stored.days("messages"))


def test_switched_off_no_process_is_started(
    stored: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **_: started.append(args))
    monkeypatch.setenv("COMPOSER_SECOND_SCANNER", "off")
    with pytest.raises(SystemExit):
        main(["ingest", str(tmp_path / "sessions"), "--lake", stored.url])
    assert started == []
    monkeypatch.setenv("COMPOSER_SECOND_SCANNER", "on")
    with pytest.raises(SystemExit):
        main(["ingest", str(tmp_path / "sessions"), "--lake", stored.url])
    assert len(started) == 1


# -- which releases hold a session ---------------------------------------------------------


def test_a_repository_is_known_to_hold_a_session_since_a_tag(lake: Lake, hub: LoopbackHub) -> None:
    first = send(lake, hub).tag
    fill(lake, [row(1, "train"), row(2, "train", session_id="new")], [row(9, "validation")])
    second = send(lake, hub).tag
    assert first != second
    assert releases_of(lake, ["session-train"]) == {REPO: first}
    assert releases_of(lake, ["new"]) == {REPO: second}
    assert releases_of(lake, ["unheard"]) == {}
    assert "session-train" not in lake.get_bytes("publications.json").decode()


def test_a_purge_forgets_what_the_history_no_longer_holds(lake: Lake, hub: LoopbackHub) -> None:
    fill(lake, [row(1, "train"), row(2, "train", session_id="taken")], [row(9, "validation")])
    send(lake, hub)
    assert digest_of("taken") in publications(lake)[REPO].sessions
    assert publications(lake)[REPO].build == build_id(lake) != ""
    add_withdrawal(lake, "session", "taken", ["taken"])
    fill(lake, [row(1, "train")], [row(9, "validation")])
    tag = send(lake, hub).tag
    assert releases_of(lake, ["taken"]) == {}
    assert releases_of(lake, ["session-train"]) == {REPO: tag}
