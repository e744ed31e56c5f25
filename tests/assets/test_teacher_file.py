"""A mistake in the teacher file costs the teachers, and nothing else."""

from pathlib import Path

import dagster as dg
import pytest

from assets.checks import teachers
from assets.definitions import build_defs
from assets.resources import TeachersResource
from composer_pipeline.settings import Settings
from examples.demo.profile import demo_settings

GOOD = demo_settings().teachers
MISTAKES = {
    "missing": ("", "No such file or directory"),
    "not YAML": ("teachers: [", "is not YAML: line 1: "),
    "a field": (
        Path(GOOD).read_text().replace("    family:", "    famly:", 1),
        ": line {line}: teachers[0] (careful).famly: unknown field (did you mean: family?)",
    ),
}


def names(defs: dg.Definitions) -> set[str]:
    """Return every asset, check, job and schedule but those of the teachers."""
    graph = defs.resolve_asset_graph()
    found = {key.to_user_string() for key in graph.get_all_asset_keys()}
    found |= {key.to_user_string() for key in graph.asset_check_keys}
    found |= {job.name for job in defs.get_repository_def().get_all_jobs()}
    repository = defs.get_repository_def()
    found |= {schedule.name for schedule in repository.schedule_defs}
    found |= {sensor.name for sensor in repository.sensor_defs}
    return {name for name in found if "teacher_replies" not in name}


@pytest.fixture
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "teachers.yaml"
    if text := MISTAKES[request.param][0]:
        file.write_text(text)
    return file


@pytest.mark.parametrize("broken", MISTAKES, indirect=True)
def test_all_but_the_teachers_stays(broken: Path, capfd: pytest.CaptureFixture[str]) -> None:
    defs = build_defs(Settings(teachers=str(broken)))
    dg.Definitions.validate_loadable(defs)
    assert names(defs) == names(build_defs(Settings(teachers=GOOD)))
    assert {"__ASSET_JOB", "preference_pairs:teachers"} <= names(defs)


@pytest.mark.parametrize(("broken", "mistake"), [(m, m) for m in MISTAKES], indirect=["broken"])
def test_the_check_names_file_line_and_field(broken: Path, mistake: str) -> None:
    result = teachers(TeachersResource(file=str(broken)))
    assert isinstance(result, dg.AssetCheckResult)
    assert not result.passed
    lines = broken.read_text().splitlines() if broken.exists() else []
    line = next((i for i, text in enumerate(lines, 1) if "famly" in text), 0)
    assert str(result.description).startswith(f"teacher file {broken}")
    assert MISTAKES[mistake][1].format(line=line) in str(result.description)


def test_the_check_passes_with_a_good_file() -> None:
    result = teachers(TeachersResource(file=GOOD))
    assert isinstance(result, dg.AssetCheckResult)
    assert result.passed
    assert "careful" in str(result.description)
