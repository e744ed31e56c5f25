"""The base model's scores: their order, what the pass reads for them, and how it goes on."""

import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.rows import TrainingData
from tests.trainers.trl import oracle
from tests.trainers.trl.toy import random_rows
from trainers.common import base_pass
from trainers.common.policy import Policy

DATA = random_rows(20, 60)
LIMIT = 150


@pytest.fixture(scope="module")
def policy():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=24, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
        pad_token_id=4, bos_token_id=0, eos_token_id=1, initializer_range=0.3,
    )  # fmt: skip
    return Policy(LlamaForCausalLM(config).eval(), pad=4, device="cpu")


def recipe(**changes):
    return tiny_recipe("toy", micro_batch_tokens=LIMIT, **changes)


def read(policy, folder, how):
    """Score all rows; return the scores and the size (B, S) of each forward after the probe."""
    sizes = []
    hook = policy.model.model.register_forward_pre_hook(
        lambda _, args, given: sizes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    found = base_pass.score(policy, how, DATA, folder)
    hook.remove()
    return found, sizes[3:] if how.shared_prefix == "on" else sizes


def test_trees_read_less_and_say_the_same(policy, tmp_path):
    together, trees = read(policy, tmp_path / "on", recipe(shared_prefix="on"))
    apart, rows = read(policy, tmp_path / "off", recipe(shared_prefix="off"))
    assert sum(b * s for b, s in trees) < 0.6 * sum(b * s for b, s in rows)
    for forwards in (trees, rows):  # one item may exceed a micro-batch
        assert all(b == 1 or b * s <= LIMIT for b, s in forwards)
    assert max(s for _, s in trees) < 2 * LIMIT
    for hint in DATA.hints:
        for one, other in zip(together.of["sdpo"][hint.id], apart.of["sdpo"][hint.id], strict=True):
            assert one == pytest.approx(other, abs=1e-4)


def test_a_hint_has_its_tokens_then_plain_and_hinted_sums_of_it_and_of_the_target(policy, tmp_path):
    found, _ = read(policy, tmp_path, recipe())
    hint = DATA.hints[3]

    def logps(prompt, response):
        with torch.no_grad():
            return oracle.logps(policy.model, prompt, response)[0].tolist()

    plain, hinted = hint.prompt_ids, hint.teacher_prompt_ids
    tokens, *sums = found.of["sdpo"][hint.id]
    assert tokens == pytest.approx(logps(plain, hint.response_ids), abs=1e-4)
    wanted = [
        sum(logps(prompt, answer))
        for answer in (hint.response_ids, hint.target_ids)
        for prompt in (plain, hinted)
    ]
    assert [value for (value,) in sums] == pytest.approx(wanted, abs=1e-3)


def test_a_model_that_does_not_take_trees_is_scored_row_by_row(tmp_path):
    """Or the reference would be of another attention than the policy's."""
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=40, hidden_size=24, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, initializer_range=0.3, sliding_window=20,
    )  # fmt: skip
    window = Policy(MistralForCausalLM(config).eval(), pad=4, device="cpu")
    found, apart = (
        base_pass.score(window, recipe(shared_prefix=how), DATA, tmp_path / how).references()
        for how in ("auto", "off")
    )
    for name, sides in apart.items():
        assert found[name] == pytest.approx(sides, rel=1e-4)


def test_a_killed_pass_goes_on_from_its_parts(policy, tmp_path):
    only = recipe(channels={"sdpo": {"hint_gain": False}, "dpo": {"weight": 0},
                            "grpo": {"weight": 0}})  # fmt: skip
    seen = []

    def say(channel, done, of):
        seen.append((channel, done, of))
        if len(seen) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        base_pass.score(policy, only, DATA, tmp_path, say)
    base_pass.score(policy, only, DATA, tmp_path, say)
    assert seen == [("sdpo", 16, 20), ("sdpo", 20, 20)]


def test_the_pass_takes_the_threads_of_replicas_that_wait(policy, tmp_path, monkeypatch):
    how = recipe(threads=1, diloco={"replicas": 3, "rounds": 1, "inner_steps": 2})
    taken: list[int] = []
    monkeypatch.setattr(type(how), "threads_alone", property(lambda _: 3))
    (tmp_path / "recipe.yaml").write_text(how.model_dump_json())
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    for name in ("resolve_model", "load_tokenizer"):
        monkeypatch.setattr(base_pass, name, lambda given: given)
    monkeypatch.setattr(base_pass, "base_policy", lambda *_: policy)
    monkeypatch.setattr(TrainingData, "load", lambda _: DATA)
    base_pass._run([tmp_path])
    assert taken == [3]


@pytest.mark.parametrize(("error", "code"), [(InputError, 2), (ComposerError, 1)])
def test_bad_input_has_an_exit_code_of_its_own(error, code, tmp_path, monkeypatch, capsys):
    def refuse(_):
        raise error("no")

    monkeypatch.setattr(sys, "argv", ["base_pass", "--run-dir", str(tmp_path), "--part=."])
    monkeypatch.setattr(base_pass, "end_with_supervisor", lambda: None)
    monkeypatch.setattr(base_pass, "_run", refuse)
    assert base_pass.main() == code
    assert capsys.readouterr().out == "error: no\n"
