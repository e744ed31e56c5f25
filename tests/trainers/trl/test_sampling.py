"""Answers that the model samples: through TRL, read back, graded, and trained on."""

import copy
import json

import pytest
import torch
from torch.testing import assert_close
from trl import chat_template_utils as templates

from composer_pipeline.errors import InputError
from composer_pipeline.testing.training import call, tiny_recipe
from composer_pipeline.training.chat_template import AnswerReader, ChatTemplate
from composer_pipeline.training.rewards import Grade, Grader
from trainers.common.sampling import Sampler

OFF = {name: {"weight": 0} for name in ("sdpo", "dpo", "sft")}


def recipe_of(model, source, **grpo):
    return tiny_recipe(model, channels={**OFF, "grpo": {"source": source, **grpo}}, norms_every=1)


def written(tokenizer, prompt_ids, message):
    """Return an answer's ids as the template writes them behind a prompt."""
    head = tokenizer.apply_chat_template(
        [{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True
    )
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": "x"}, message], tokenize=False
    )
    ids = tokenizer(whole[len(head) :], add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id
    return ids[: len(ids) - ids[::-1].index(end)]


GRADER = Grader({"match": 1.0})


@pytest.fixture
def group(data):
    return data.groups[0]


def test_an_answer_is_read_back_and_graded_against_the_consensus(tokenizer, group):
    sampler = Sampler(lambda prompts: [], tokenizer, GRADER, size=2, seed="0")

    def grade(ids):
        return sampler.grade(group, ids).value

    right = json.loads(group.case)["consensus"]
    same = written(tokenizer, group.prompt_ids, right)
    assert grade(same) == pytest.approx(1.0)
    near = call("Read", file_path="src/other.py")
    assert 0 < grade(written(tokenizer, group.prompt_ids, near)) < 1
    other = call("Bash", command="ls")
    assert grade(written(tokenizer, group.prompt_ids, other)) == 0
    said = {"role": "assistant", "content": "It is done."}
    assert grade(written(tokenizer, group.prompt_ids, said)) == 0
    assert grade(same[:-1]) == 0  # cut before its end
    broken = tokenizer('<tool_call>\n{"name": "Read", "arg', add_special_tokens=False)["input_ids"]
    assert grade([*broken, tokenizer.eos_token_id]) == 0


def test_samples_are_counted_and_the_same_for_the_same_step(tokenizer, group):
    def generate(prompts):
        numbers = torch.randint(0, 3, (len(prompts),)).tolist()
        return [[100 + n, tokenizer.eos_token_id] for n in numbers]

    sampler = Sampler(generate, tokenizer, GRADER, size=6, seed="7/0")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = sampler.sample([group, group], 3)
    assert torch.equal(torch.get_rng_state(), before)
    assert [sum(counts) for _, counts, _ in first] == [6, 6]
    assert all(len(answers) == len({tuple(a) for a in answers}) for answers, _, _ in first)
    assert sampler.sample([group, group], 3) == first
    assert sampler.sample([group, group], 4) != first
    other = Sampler(generate, tokenizer, GRADER, size=6, seed="7/1")
    assert other.sample([group, group], 3) != first


def test_replicas_sample_answers_of_their_own(make_tiny, tiny_model, group):
    """Equal ones would teach them the same, and a round of two be worth one."""
    two = {"replicas": 2, "rounds": 1, "inner_steps": 2}
    recipe = tiny_recipe(tiny_model, channels={**OFF, "grpo": {"source": "sampled"}}, diloco=two)
    drawn = []
    for slot in (0, 1, 0):
        (grpo,) = make_tiny(recipe, slot=slot).channels
        sampler = grpo._sampler
        sampler._generate = lambda prompts: torch.randint(9, 99, (len(prompts), 2)).tolist()
        drawn.append(sampler.sample([group], 3))
    assert drawn[0] == drawn[2] != drawn[1]


def test_each_part_of_the_reward_is_told_as_its_mean_over_the_answers(tokenizer, group):
    right = written(tokenizer, group.prompt_ids, json.loads(group.case)["consensus"])
    text = written(tokenizer, group.prompt_ids, {"role": "assistant", "content": "Done."})
    sampler = Sampler(lambda _: [right, right, right, text], tokenizer, GRADER, size=4, seed="0")
    sampler.sample([group], 0)
    assert sampler.parts == {"match": pytest.approx(0.75)}
    strict = Sampler(lambda _: [right[:-1]], tokenizer, Grader({"validity": 2}), size=1, seed="0")
    assert strict.sample([group], 0)[0][2] == [-2]


@pytest.mark.parametrize(
    "name",
    [
        "qwen2_5_chat_template", "qwen2_5_training_chat_template", "qwen3_chat_template",
        "qwen3_training_chat_template", "nemotron_3_nano_chat_template",
        "llama3_1_chat_template", "glm4moe_training_chat_template",
    ],
)  # fmt: skip
def test_templates_that_trl_knows_are_read(tokenizer, name):
    other = copy.deepcopy(tokenizer)
    other.chat_template = getattr(templates, name)
    assert AnswerReader(other)._reader.response_template is not None
    assert other.chat_template == getattr(templates, name)
    ChatTemplate(other)  # what a recipe's tokenizer went through
    assert AnswerReader(other)._reader.response_template is not None


def test_a_template_that_nobody_can_read_is_said(tokenizer):

    other = copy.deepcopy(tokenizer)
    other.chat_template = tokenizer.chat_template + "{# mine #}"
    with pytest.raises(InputError, match=r"channels\.grpo\.source.*use 'recorded'"):
        Sampler(lambda prompts: [], other, GRADER, size=2, seed="0")


def test_the_model_samples_with_its_own_policy_and_learns_from_it(make_tiny, tiny_model, data):
    """Rewards that like short answers make them likelier: the policy gradient's sign."""
    seen = []
    recipe = recipe_of(tiny_model, "sampled", group_size=6, groups_per_step=2)
    trainer = make_tiny(recipe, on_event=lambda kind, step, numbers: seen.append(numbers))
    (grpo,) = trainer.channels
    sampler, liked = grpo._sampler, 7
    asked: list[tuple[int, ...]] = []

    def generate(prompts):
        asked.extend(map(tuple, prompts))
        return [[liked if i % 2 else 9, 30 + i, 2] for i in range(len(prompts))]

    sampler._generate = generate
    sampler.grade = lambda group, answer: Grade(float(answer[0] == liked), {})
    window = grpo.window(trainer.policy, 0)
    groups = grpo.drawn(0)
    assert asked == [tuple(g.prompt_ids) for g in groups for _ in range(6)]
    assert len(window) == 12
    assert sorted({round(a.advantage, 6) for a in window}) == [-0.5, 0.5]
    assert all(a.sampling == [] for a in window)
    trainer.train()
    assert seen[0]["grpo_sampled"] == 12
    assert seen[0]["grpo_reward"] == pytest.approx(0.5)
    assert seen[0]["grpo_masked"] == 0
    assert seen[0]["grpo_grad_norm"] > 0

    def first_token(model):
        ids = torch.tensor([groups[0].prompt_ids])
        with torch.no_grad():
            return model(input_ids=ids).logits[0, -1].log_softmax(-1)

    model = trainer.policy.model
    after = first_token(model)
    with model.disable_adapter():
        before = first_token(model)
    assert after[liked] - before[liked] > after[9] - before[9]


def test_the_gradient_on_sampled_answers_is_the_policy_gradient(make_tiny, tiny_model, data, shake):
    recipe = recipe_of(tiny_model, "sampled", group_size=3)
    trainer = make_tiny(recipe)
    shake(trainer)
    (grpo,) = trainer.channels
    answers = [[11, 12, 2], [13, 2], [11, 12, 2]]
    grpo._sampler._generate = lambda prompts: answers
    grpo._sampler.grade = lambda group, answer: Grade(1.0 if answer[0] == 13 else 0.25, {})
    trainer.training_step(trainer.model, {})
    got = torch.cat([p.grad.flatten() for p in trainer.policy.parameters()]).clone()
    model = trainer.policy.model
    model.zero_grad()
    (group,) = grpo.drawn(0)
    total = torch.zeros(())
    for answer in answers:
        ids = torch.tensor([[*group.prompt_ids, *answer]])
        logps = model(input_ids=ids).logits[0, len(group.prompt_ids) - 1 : -1].log_softmax(-1)
        picked = logps.gather(-1, torch.tensor(answer)[:, None]).sum()
        advantage = (1.0 if answer[0] == 13 else 0.25) - 0.5
        total = total - picked * advantage / 3 / grpo._length
    total.backward()
    want = torch.cat([p.grad.flatten() for p in trainer.policy.parameters()])
    assert_close(got, want, rtol=1e-4, atol=1e-8)


def test_trl_generates_for_real_and_mixed_groups_hold_both(make_tiny, tiny_model, data):
    recipe = recipe_of(tiny_model, "mixed", group_size=2)
    trainer = make_tiny(recipe)
    (grpo,) = trainer.channels
    window = grpo.window(trainer.policy, 0)
    (group,) = grpo.drawn(0)
    recorded = {tuple(c) for c in group.completions}
    own = [a for a in window if tuple(a.response_ids) not in recorded]
    assert len(own) in (1, 2)
    assert all(0 < len(a.response_ids) <= recipe.data.max_completion_tokens for a in own)
    assert {tuple(a.response_ids) for a in window} >= recorded
    assert sum(a.share for a in window) == pytest.approx(1)
    total = sum(group.counts) + 2
    shares = {tuple(a.response_ids): a.share for a in window}
    for ids, count in zip(group.completions, group.counts, strict=True):
        assert shares[tuple(ids)] == pytest.approx(count / total)
    again = [tuple(a.response_ids) for a in grpo.window(trainer.policy, 0)]
    assert again == [tuple(a.response_ids) for a in window]
    trainer.training_step(trainer.model, {})


def test_a_group_whose_answers_are_all_as_good_is_counted_and_not_run(make_tiny, tiny_model):
    recipe = recipe_of(tiny_model, "sampled", group_size=2)
    trainer = make_tiny(recipe)
    (grpo,) = trainer.channels
    grpo._sampler.grade = lambda group, answer: Grade(0.0, {})
    assert grpo.window(trainer.policy, 0) == []
    assert grpo.numbers["zero_variance"] == 1


def test_zero_variance_groups_are_kept_where_the_model_answers(
    tmp_path, lake, tokenizer, tiny_model
):
    from composer_pipeline.lake.store import Lake
    from composer_pipeline.testing.training import write_dataset
    from composer_pipeline.training.rows import build

    other = Lake(tmp_path / "lake")
    write_dataset(other, rows=4)
    rows = [{k: v for k, v in r.items() if k != "split"} for r in other.rows("dataset_groups")]
    for row in rows[:2]:
        row["candidates"], row["sources"] = [*row["consensus"], *row["consensus"]], ["agent", "one"]
        row["sources"] = ["agent", "one"]
    other.write("dataset_groups", rows, split="train")
    kept = {
        source: len(
            build(other, tokenizer, recipe_of(tiny_model, source), tmp_path / source).groups
        )
        for source in ("recorded", "sampled", "mixed")
    }
    assert kept == {"recorded": 2, "sampled": 4, "mixed": 4}
