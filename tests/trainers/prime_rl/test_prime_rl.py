"""``trainer: prime-rl`` writes configuration and data that PRIME-RL reads, and refuses the rest."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset

from composer_pipeline import Lake
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.settings import recipes_dir
from composer_pipeline.testing.training import write_dataset
from composer_pipeline.training.plan import plan
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import validate
from composer_pipeline.training.run import prepare, train

SHIPPED = recipes_dir() / "train" / "prime-rl.yaml"
OFF: dict[str, Any] = {name: {"weight": 0} for name in ("grpo", "sdpo", "dpo", "sft")}


def recipe(**changes: Any) -> TrainingRecipe:
    fields = {"channels": OFF | {"sft": {"weight": 1.0, "rows_per_step": 4}}, **changes}
    once = {"replicas": 1, "rounds": 3, "inner_steps": 5}
    return TrainingRecipe(name="x", trainer="prime-rl", diloco=once, **fields)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("lake"))
    write_dataset(lake, rows=6)
    write_dataset(lake, rows=2, split="validation")
    return lake


def rendered(lake: Lake, wanted: TrainingRecipe, folder: Path) -> tuple[Path, str]:
    with pytest.raises(ComposerError, match="PRIME-RL was not started") as ended:
        train(lake, wanted, folder)
    run_dir = prepare(lake, wanted, folder, begin=False).run_dir
    assert not (run_dir / "composer.json").exists()
    assert str(run_dir) in str(ended.value)
    return run_dir, (run_dir / "command.txt").read_text()


def test_sft_is_written_as_configuration_and_data(lake: Lake, tmp_path: Path) -> None:
    wanted = recipe(
        lora={"r": 4, "alpha": 8, "targets": ["q_proj"]}, learning_rate=2e-5, seed=3,
        backend={"options": {"renderer": "qwen3"}},
    )  # fmt: skip
    run_dir, command = rendered(lake, wanted, tmp_path)
    assert command == f"uv run sft @ {run_dir / 'sft.toml'}\n"
    found = tomllib.loads((run_dir / "sft.toml").read_text())
    assert found == {
        "max_steps": 15,
        "model": {
            "name": "smollm2-135m",
            "lora": {"rank": 4, "alpha": 8.0, "target_modules": ["q_proj"]},
        },
        "renderer": {"name": "qwen3"},
        "data": {
            "name": str(run_dir / "data" / "sft"), "seq_len": 1280, "batch_size": 4, "seed": 3,
        },
        "optim": {"type": "adamw", "lr": 2e-5, "weight_decay": 0.0, "max_norm": 1.0},
    }  # fmt: skip
    rows = load_dataset(found["data"]["name"], split="train", cache_dir=str(tmp_path / "cache"))
    expected = [row["consensus"] for row in lake.rows("dataset_groups", split="train")]
    assert [row["completion"] for row in rows] == expected
    assert len(rows) == 6
    assert rows.column_names == ["prompt", "completion", "tools"]


def test_sampled_grpo_plays_in_the_environment_server(lake: Lake, tmp_path: Path) -> None:
    grpo = {"weight": 1.0, "source": "sampled", "group_size": 3, "groups_per_step": 2}
    run_dir, command = rendered(lake, recipe(channels=OFF | {"grpo": grpo}), tmp_path)
    assert command.startswith("uv run rl @ ")
    found = tomllib.loads((run_dir / "rl.toml").read_text())
    source = found["orchestrator"]["train"]["source"][0]["env"]["taskset"]
    states = sorted(row["state_id"] for row in lake.rows("dataset_groups", split="train"))
    assert [reset["state_id"] for reset in source["resets"]] == states
    assert (source["id"], source["base_url"]) == ("openenv", "http://127.0.0.1:8000")
    assert (found["orchestrator"]["batch_size"], found["orchestrator"]["group_size"]) == (6, 3)
    assert found["orchestrator"]["renderer"] == {"name": "default"}
    assert found["model"]["lora"]["rank"] == 8


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({"grpo": {"weight": 1.0}}, r"channels\.grpo\.weight: .*nothing recorded"),
        ({"grpo": {"weight": 1.0, "source": "mixed"}}, r"grpo\.weight: .*nothing recorded"),
        ({"dpo": {"weight": 1.0}}, r"channels\.dpo\.weight: .*nothing recorded"),
        ({"sdpo": {"weight": 1.0}}, r"channels\.sdpo\.weight: .*nothing recorded"),
        (
            {"sft": {"weight": 1.0}, "grpo": {"weight": 1.0, "source": "sampled"}},
            r"channels\.sft\.weight: .*a run of its own",
        ),
        (
            {"sft": {"weight": 1.0, "source": "both"}},
            r"channels\.sft\.source: .*takes only \"consensus\"",
        ),
    ],
)
def test_what_prime_rl_cannot_train_is_refused(weights: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        validate(recipe(channels=OFF | weights))


def test_the_shipped_recipe_is_planned_without_its_model(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    found = plan(lake, SHIPPED, tmp_path, model_config=tmp_path / "config.json")
    assert found.fidelity == {"sft": "exact"}
    assert (found.rows, found.steps) == ({"sft": 6}, 100)
    with pytest.raises(InputError, match="--memory-gib: trainer 'prime-rl' predicts no memory"):
        plan(lake, SHIPPED, tmp_path, model_config=tmp_path / "config.json", memory_gib=8.0)
