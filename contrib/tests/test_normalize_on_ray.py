"""Operators on a Ray cluster give what they give in one process."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.normalization.operators import WorkerSettings
from composer_pipeline.normalization.stage import normalize
from contrib import normalize_on_ray as on_ray
from contrib.normalize_on_ray import main, normalize_on_ray
from tests.normalization.test_command import DAY, files, pair, say, write


class Ray:
    """The calls of ray that are made, in this process."""

    put = staticmethod(lambda value: value)
    get = staticmethod(lambda tasks: tasks)

    @staticmethod
    def remote(function: Any) -> Any:
        return SimpleNamespace(remote=function)

    @staticmethod
    def cluster_resources() -> dict[str, float]:
        return {"CPU": 2.0}


def test_a_cluster_gets_chunks_and_gives_results_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def chunk(_: Any, index: int, batch: Any, count: int) -> tuple[list[Any], str]:
        sizes.append(count)
        return list(batch["chosen_text"]), "" if index else "[x] failed there"

    monkeypatch.setattr(on_ray, "_evaluate_chunk", chunk)
    cluster = on_ray.OnRay(Ray(), WorkerSettings([]))
    texts = [str(n) for n in range(1000)]
    assert cluster.run(1, None, {"chosen_text": texts}, 1000) == texts
    assert (len(sizes), sum(sizes)) == (5, 1000)  # of 200 values at least
    with pytest.raises(InputError, match="failed there"):
        cluster.run(0, None, {"chosen_text": texts}, 1000)


def test_an_operator_that_fails_on_a_node_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> Any:
        raise InputError("[x] needs a model")

    monkeypatch.setattr(on_ray, "guard", lambda: None)
    monkeypatch.setattr(on_ray, "load_steps", load)
    found = on_ray._evaluate_chunk(WorkerSettings([("x", {})]), 0, {}, 0)
    assert found == ([], "[x] needs a model")


@pytest.mark.slow
def test_a_local_ray_cluster_keeps_the_same_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    rows = [
        pair(
            f"p{i}", say(f"a  {'x' * (i % 50)} {i % 1050:04}"), say("ls " * (i % 7)), f"at {i % 9}"
        )
        for i in range(1200)
    ]
    lake.write("pairs", rows, day=DAY)
    process: list[dict[str, Any]] = [
        {"replace_content_mapper": {"text_key": "chosen_text", "pattern": " +", "repl": " "}},
        {"text_length_filter": {"text_key": "chosen_text", "min_len": 20}},
        {"word_repetition_filter": {"text_key": "rejected_text", "rep_len": 2}},
        {"general_field_filter": {"filter_condition": "chosen_text != rejected_text"}},
        {"document_deduplicator": {"text_key": "chosen_text"}},
    ]
    local = normalize(lake, write(tmp_path, *process))
    before = files(lake)
    assert normalize_on_ray(lake, str(write(tmp_path, *process, np=2)), "local") == local
    assert files(lake) == before
    assert 0 < local.kept < 1200
    assert set(local.by_op) == {
        "1:text_length_filter",
        "2:word_repetition_filter",
        "4:document_deduplicator",
    }


def test_a_ray_cluster_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    lake = Lake(tmp_path / "lake")
    lake.write("pairs", [pair("a", say("x"), say("y"))], day=DAY)
    recipe = str(write(tmp_path, {"text_length_filter": {"text_key": "chosen_text"}}))
    assert main(["--recipe", recipe, "--lake", lake.url]) == 2
    assert "Ray cluster 'auto'" in capsys.readouterr().err
