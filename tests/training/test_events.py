"""``metrics.jsonl``: strict JSON, and a file whose writer was killed."""

import json

import pytest

from composer_pipeline.errors import StorageError
from composer_pipeline.training import events
from composer_pipeline.training.run import METRICS, read_steps

STEP = {"event": "step", "slot": 0, "step": 1, "of": 2, "dpo_loss": 0.5}


def refuse(name):
    raise ValueError(name)


def test_a_number_that_is_not_finite_is_null_and_named():
    event = {**STEP, "dpo_loss": float("nan"), "grad_norm": float("-inf"), "lr": 1e-4}
    parsed = json.loads(events.line(event), parse_constant=refuse)
    assert parsed["non_finite"] == ["dpo_loss", "grad_norm"]
    assert (parsed["dpo_loss"], parsed["grad_norm"], parsed["lr"]) == (None, None, 1e-4)
    assert "non_finite" not in json.loads(events.line(STEP))


@pytest.mark.parametrize("torn", ['{"event": "st', '{"event": "step", "slot": 0', "\x00\x00"])
def test_a_torn_last_line_is_skipped_and_superseded(tmp_path, torn):
    path = tmp_path / METRICS
    path.write_text(events.line(STEP) + "\n" + torn)
    assert list(events.read(path)) == [STEP]
    assert read_steps(tmp_path) == {(0, 1): {"dpo_loss": 0.5}}
    with events.appending(path) as file:
        events.append(file, {**STEP, "step": 2})
    assert [json.loads(text)["step"] for text in path.read_text().splitlines()] == [1, 2]


def test_a_whole_line_without_its_end_is_kept(tmp_path):
    path = tmp_path / METRICS
    path.write_text(events.line(STEP))
    with events.appending(path) as file:
        events.append(file, {**STEP, "step": 2})
    assert [event["step"] for event in events.read(path)] == [1, 2]


def test_a_line_on_which_an_earlier_version_went_on_is_skipped(tmp_path):
    path = tmp_path / METRICS
    path.write_text('{"event": "st' + events.line(STEP) + "\n" + events.line(STEP) + "\n[1]\n")
    assert list(events.read(path)) == [STEP]


def test_a_full_disk_leaves_whole_lines(small_disk):
    path = small_disk / METRICS
    wide = {**STEP, "text": "x" * 100_000}

    def fill(file):
        while True:
            events.append(file, wide)

    with events.appending(path) as file, pytest.raises(StorageError, match="No space left"):
        fill(file)
    found = list(events.read(path))
    assert found
    assert all(event == wide for event in found)


def test_what_a_replica_said_before_the_kill_is_taken_down_later(tmp_path):
    path, log = tmp_path / METRICS, tmp_path / "slot-0.log"
    steps = [{**STEP, "step": i, "dpo_loss": 1.0 / i} for i in (1, 2, 3)]
    said = [events.line(step) for step in steps]
    log.write_text("loading\n" + "\n".join(said) + '\n{"event": "st')
    path.write_text(events.line({"time": 1.5, **steps[0]}) + "\n")
    for appended in (2, 0):
        with events.appending(path) as file:
            assert events.recover(file, path, [log]) == appended
    assert read_steps(tmp_path) == {(0, i): {"dpo_loss": 1.0 / i} for i in (1, 2, 3)}
