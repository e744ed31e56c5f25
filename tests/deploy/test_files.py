"""The files of a deployment agree with each other, with Dagster, and with the code."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._config import validate_config
from dagster._core.instance.config import dagster_instance_config_schema

from composer_pipeline.settings import Settings
from tests.places import ROOT

DEPLOY = ROOT / "deploy"
GUIDE = (ROOT / "docs" / "deploy.md").read_text()


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text())
    return found


def variables() -> dict[str, str]:
    """Return what env.example names."""
    return dict(re.findall(r"^([A-Z_]+)=(.*)$", (DEPLOY / "env.example").read_text(), re.M))


def test_dagster_takes_the_instance_settings() -> None:
    for file in (DEPLOY / "dagster.yaml", ROOT / "dagster.yaml"):
        config = yaml.safe_load(file.read_text())
        result = validate_config(dagster_instance_config_schema(), config)
        assert result.success, result.errors


def test_slots_and_pools_are_those_of_make_dev() -> None:
    local, deployed = yaml.safe_load((ROOT / "dagster.yaml").read_text()), read("dagster.yaml")
    assert deployed["concurrency"] == local["concurrency"]
    name = "free_slots_after_run_end_seconds"
    assert deployed["run_monitoring"][name] == local["run_monitoring"][name]
    values = read("values.yaml")["dagsterDaemon"]
    assert values["runMonitoring"]["freeSlotsAfterRunEndSeconds"] == local["run_monitoring"][name]
    queued = values["runCoordinator"]["config"]["queuedRunCoordinator"]
    assert queued["maxConcurrentRuns"] == local["concurrency"]["runs"]["max_concurrent_runs"]


def test_every_variable_is_one_that_something_reads() -> None:
    known = {f"COMPOSER_{name.upper()}" for name in Settings.model_fields}
    others = {
        "POSTGRES_PASSWORD", "DAGSTER_POSTGRES_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
        "AWS_REGION", "SESSIONS", "OPENROUTER_API_KEY", "HF_TOKEN", "COMPOSER_ALERT_URL",
    }  # fmt: skip
    assert set(variables()) <= known | others


@pytest.mark.parametrize("name", ["compose.yaml", "values.yaml", "dagster.yaml", "Dockerfile"])
def test_no_secret_stands_in_a_file(name: str) -> None:
    text = (DEPLOY / name).read_text()
    assert not re.search(
        r"(?i)(password|secret|key|token)\w*\s*[:=]\s*[\"']?[A-Za-z0-9+/]{12,}", text
    )
    secrets = [name for name in variables() if name.endswith(("PASSWORD", "KEY", "TOKEN", "URL"))]
    for secret in secrets:
        assert not re.search(rf"{secret}\s*[:=]\s*[^$\s{{?]", text), secret


def test_every_container_has_limits_and_no_root() -> None:
    services = read("compose.yaml")["services"]
    assert set(services) == {"postgres", "code", "webserver", "daemon"}
    for name, service in services.items():
        limits = service["deploy"]["resources"]["limits"]
        assert {"cpus", "memory"} <= set(limits), name
    text = (DEPLOY / "Dockerfile").read_text()
    assert text.index("USER composer") > text.index("RUN useradd")
    assert services["webserver"]["ports"] == ["127.0.0.1:3000:3000"]


def test_the_image_has_what_the_code_location_imports() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    copied = " ".join(re.findall(r"^COPY (.+)$", text, re.M))
    for path in ("assets", "composer_pipeline", "trainers", "recipes", "constraints.txt"):
        assert path in copied
    for path in re.findall(r"(\S+) ", copied):
        assert (ROOT / path).exists(), path
    version = re.search(r"python:(\d\.\d+)", text)
    assert version
    assert version[1] == "3.11"


def test_the_chart_is_of_the_pinned_dagster() -> None:
    pinned = re.search(r"^dagster==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert pinned
    assert pinned[1] in (DEPLOY / "values.yaml").read_text()
    assert f"--version {pinned[1]}" in GUIDE


def test_the_guide_names_the_files_and_the_commands() -> None:
    for path in sorted(Path(DEPLOY).iterdir()):
        assert f"deploy/{path.name}" in GUIDE, path.name
    for service in read("compose.yaml")["services"].values():
        if "command" in service:
            assert service["command"][0] in GUIDE
