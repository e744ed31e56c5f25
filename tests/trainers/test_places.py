"""Where a run starts its replicas: child processes first, the others at the recipe's place."""

import sys
from io import BytesIO
from types import ModuleType, SimpleNamespace

import pytest

from composer_pipeline.training.recipe import TrainingRecipe
from trainers import __main__ as trainers


@pytest.fixture
def supervised(monkeypatch, tmp_path):
    """Return what the supervisor of a recipe is given, with a stand-in for Monarch's actors."""
    module = ModuleType("monarch_actors")
    module.MonarchActors = lambda *given: given  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "composer_pipeline.diloco.places.monarch_actors", module)
    given: dict = {}

    def supervisor(**options):
        given.update(options)
        return SimpleNamespace(run=lambda: None)

    monkeypatch.setattr(trainers, "Supervisor", supervisor)

    def start(**diloco):
        fields = {"name": "x", "diloco": {"replicas": 3, "rounds": 1, **diloco}}
        recipe = TrainingRecipe.model_validate(fields)
        devices = [{"DEVICE": str(number)} for number in range(max(1, recipe.diloco.here))]
        trainers._replicas(recipe, "rows", tmp_path, BytesIO(), None, devices)
        return given

    return start


@pytest.mark.parametrize("local", [None, 0, 1])
def test_each_replica_of_this_machine_has_its_own_device_in_a_process_or_an_actor(
    supervised, tmp_path, local
):
    given = supervised(local_replicas=local, place={"kind": "monarch"})
    actors = [command for command, _ in given["places"]]
    assert len(given["commands"]) == (local or 0)
    assert given["elsewhere"] == 0
    for number, command in enumerate([*given["commands"], *actors]):
        assert command.argv[1:] == ["-m", "trainers.replica", "--run-dir", str(tmp_path)]
        assert (command.env["DEVICE"], command.env["HF_HUB_OFFLINE"]) == (str(number), "1")
    assert {logs for _, logs in given["places"]} == {given["run_dir"]}


def test_a_service_starts_those_beyond_the_local_ones_and_others_join_by_themselves(supervised):
    apart = {"log": "s3://b/x", "local_replicas": 1}
    given = supervised(**apart)
    assert (len(given["commands"]), len(given["places"]), given["elsewhere"]) == (1, 0, 2)
    given = supervised(**apart, place={"kind": "kubernetes", "namespace": "n", "image": "i"})
    assert (len(given["commands"]), len(given["places"]), given["elsewhere"]) == (1, 2, 0)
    given = supervised(log="s3://b/x", local_replicas=0)
    assert (len(given["commands"]), len(given["places"]), given["elsewhere"]) == (0, 0, 3)
