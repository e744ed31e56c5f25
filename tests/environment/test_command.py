"""What keeps the server from starting is said in one sentence."""

import socket
import sys
from pathlib import Path

import pytest

from composer_pipeline.cli.__main__ import main
from composer_pipeline.lake.store import Lake
from tests.fixtures.lake_states import write_sessions


@pytest.fixture
def lake(tmp_path: Path) -> str:
    write_sessions(Lake(str(tmp_path)), 1, 3)
    return str(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(["environment", *arguments])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.count("\n") == 1
    return said


def test_a_port_that_is_taken_is_named(lake, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused(capsys, "--lake", lake, "--port", port)
    assert f"cannot listen on 127.0.0.1:{port}" in said


def test_without_openenv_the_extra_is_named(lake, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "openenv", None)
    said = refused(capsys, "--lake", lake)
    assert "pip install 'composer-pipeline[environment]'" in said
