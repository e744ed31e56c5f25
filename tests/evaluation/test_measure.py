"""Models at states: against a model whose probabilities are written down, and naive loops."""

import copy
import math

import msgspec
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from composer_pipeline.actions import Action
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.evaluation.measure import Arm, measure
from composer_pipeline.evaluation.results import BASE
from composer_pipeline.evaluation.states import batches, row_of
from composer_pipeline.training.windows import Windows
from tests.evaluation.conftest import LIMITS, read
from tests.evaluation.scripted import Scripted, says


def ramp(answer, first):
    """Return a probability for each token, all different: an answer read one off shows."""
    return [first - 0.3 * i / len(answer) for i in range(len(answer))]


@pytest.fixture(scope="module")
def states(make_state):
    return [make_state(i) for i in range(10)]


@pytest.fixture(scope="module")
def rows(windows, states):
    return [row_of(windows, state) for state in states]


@pytest.fixture
def scripted(rows, tokenizer):
    """The base says what the agent did where that was wrong; the trained model is right."""
    tables: dict[str, dict] = {BASE: {}, "trained": {}}
    for row in rows:
        for name, table in tables.items():
            likes_wrong = name == BASE and row.wrong_ids
            says(
                table,
                row.prompt_ids,
                row.right_ids,
                ramp(row.right_ids, 0.45 if likes_wrong else 0.9),
            )
            if row.wrong_ids:
                shared = next(
                    i
                    for i, (a, b) in enumerate(zip(row.right_ids, row.wrong_ids, strict=False))
                    if a != b
                )
                own = row.wrong_ids[shared:]
                says(
                    table,
                    [*row.prompt_ids, *row.wrong_ids[:shared]],
                    own,
                    [0.5, *ramp(own, 0.8)[1:]] if likes_wrong else [0.05, *ramp(own, 0.7)[1:]],
                )
            if row.hinted_ids:
                says(table, row.hinted_ids, row.right_ids, ramp(row.right_ids, 0.97))
    return {name: Scripted(table, len(tokenizer)) for name, table in tables.items()}


def arms(models):
    return [Arm(name, model) for name, model in models.items()]


def log_p(model, prompt, answer):
    context, total = list(prompt), 0.0
    for token in answer:
        total += math.log(model.p(tuple(context), token))
        context.append(token)
    return total


def naive_kl(model, base, prompt, answer):
    context, total = tuple(prompt), 0.0
    for token in answer:
        named = {*model.table.get(context, {}), *base.table.get(context, {})}
        rest = [m.rest(context) for m in (model, base)]
        both = [(model.p(context, t), base.p(context, t)) for t in named]
        total += sum(p * (math.log(p) - math.log(q)) for p, q in both)
        p, q = rest
        total += (model.vocabulary - len(named)) * p * (math.log(p) - math.log(q))
        context = (*context, token)
    return total / len(answer)


@pytest.mark.parametrize("batch_tokens", [1, 16_384])
def test_every_number_is_the_one_that_is_written_down(
    scripted, rows, states, windows, batch_tokens
):
    told = []
    found = measure(
        states, arms(scripted), windows, batch_tokens=batch_tokens,
        progress=lambda done, of: told.append((done, of)),
    )  # fmt: skip
    assert not found.dropped
    assert list(found.results) == [BASE, "trained"]
    assert told[-1] == (20, 20)
    widest = max(shape[0] for shape in scripted[BASE].batches)
    assert (widest == 1) == (batch_tokens == 1)
    for name, results in found.results.items():
        model = scripted[name]
        assert [r.state_id for r in results] == [s.state_id for s in states]
        for result, row in zip(results, rows, strict=True):

            def near(prompt, answer, model=model):
                return pytest.approx(log_p(model, prompt, answer), abs=1e-3)

            assert result.logp_right == near(row.prompt_ids, row.right_ids)
            assert result.tokens_right == len(row.right_ids)
            if row.wrong_ids:
                assert result.logp_wrong == near(row.prompt_ids, row.wrong_ids)
                assert result.tokens_wrong == len(row.wrong_ids)
                assert result.logp_right_hinted == near(row.hinted_ids, row.right_ids)
            else:
                assert result.logp_wrong is result.logp_right_hinted is result.tokens_wrong is None
            if name == BASE:
                assert result.kl is None
            else:
                wanted = naive_kl(model, scripted[BASE], row.prompt_ids, row.right_ids)
                assert result.kl == pytest.approx(wanted, rel=1e-3)
                other = naive_kl(scripted[BASE], model, row.prompt_ids, row.right_ids)
                assert abs(wanted - other) > 0.01 or not row.wrong_ids
            right = name != BASE or not row.wrong_ids
            assert result.judgement.exact is right
            assert result.judgement.canonical is right
            assert result.judgement.valid_call is True
            assert result.ended
            said = row.state.right if right else row.state.wrong
            assert result.judgement.action
            assert result.judgement.action.tool_calls[0].arguments == said.tool_calls[0].arguments


@pytest.fixture(scope="module")
def llama(tokenizer):
    """A random model whose attention matters: what is masked or misplaced shows."""
    torch.manual_seed(3)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
            tie_word_embeddings=False, pad_token_id=tokenizer.pad_token_id, initializer_range=0.3,
        )
    )  # fmt: skip
    return model.eval()


@torch.no_grad()
def test_a_transformer_in_batches_gives_what_it_gives_alone_without_cache(
    llama, rows, states, windows, tokenizer
):
    found = measure(states, [Arm(BASE, llama)], windows, max_new_tokens=7).results[BASE]
    config = GenerationConfig(
        max_new_tokens=7, do_sample=False, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    for result, row in zip(found, rows, strict=True):
        for prompt, answer, value in (
            (row.prompt_ids, row.right_ids, result.logp_right),
            (row.prompt_ids, row.wrong_ids, result.logp_wrong),
            (row.hinted_ids, row.right_ids, result.logp_right_hinted),
        ):
            if value is None:
                continue
            ids = torch.tensor([[*prompt, *answer]])
            logps = llama(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
            total = sum(float(logps[len(prompt) + i - 1, t]) for i, t in enumerate(answer))
            assert value == pytest.approx(total, rel=1e-4)
        ids = list(row.prompt_ids)
        for _ in range(7):
            logits = llama(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            ids.append(int(logits.argmax()))
        said = ids[len(row.prompt_ids) :]
        assert result.answer == tokenizer.decode(said)
        assert not result.ended
        assert result.judgement.problem == "the answer was cut off"
        library = llama.generate(torch.tensor([row.prompt_ids]), generation_config=config)
        assert library[0, len(row.prompt_ids) :].tolist() == said


def test_the_adapter_is_off_in_the_base_and_on_again_behind_it(llama, states, windows):
    torch.manual_seed(0)
    model = get_peft_model(
        copy.deepcopy(llama), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    ).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_B" in name:
                value.normal_(0, 3)
    both = measure(
        states[:3], [Arm(BASE, model, adapter=False), Arm("trained", model)], windows,
        max_new_tokens=2,
    ).results  # fmt: skip
    alone = measure(states[:3], [Arm(BASE, llama)], windows, max_new_tokens=2).results[BASE]
    for base, trained, bare in zip(both[BASE], both["trained"], alone, strict=True):
        assert base.logp_right == pytest.approx(bare.logp_right, rel=1e-5)
        assert abs(trained.logp_right - bare.logp_right) > 0.05
        assert (trained.kl or 0.0) > 0.1


def test_an_arm_that_is_known_is_asked_only_for_what_the_kl_needs(scripted, states, windows):
    whole = measure(states, arms(scripted), windows)
    known = {BASE: [msgspec.structs.replace(r, answer="kept") for r in whole.results[BASE]]}
    again = measure(states, arms(scripted), windows, known=known)
    assert again.results == {BASE: known[BASE], "trained": whole.results["trained"]}
    assert any(result.kl for result in again.results["trained"])
    with pytest.raises(InputError, match=f"'base' has no result of {known[BASE][0].state_id}"):
        measure(states, arms(scripted), windows, known={BASE: known[BASE][1:]})


def test_what_does_not_fit_is_counted_and_a_set_of_nothing_else_is_refused(
    scripted, states, make_state, windows
):
    long = make_state(20, right=Action("word " * 100))
    lost = make_state(
        21, state_id="lost", right=read("deep/in/the/log.py"),
        messages=[
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": f"{'word ' * 900}deep/in/the/log.py{' word' * 900}"},
            {"role": "user", "content": "Now."},
        ],
    )  # fmt: skip
    found = measure([states[0], long, lost], arms(scripted), windows)
    assert found.dropped == {"state020": "response is too long", "lost": "lost file"}
    assert len(found.results[BASE]) == 1
    with pytest.raises(InputError, match=r"none of 1 evaluation states.*too long"):
        measure([long], arms(scripted), windows)


def test_a_wrong_action_that_does_not_fit_is_left_out_alone(scripted, states, make_state, windows):
    state = make_state(0, wrong=Action("word " * 100))
    found = measure([state], arms(scripted), windows).results["trained"][0]
    assert found.logp_wrong is None
    assert found.judgement.exact


def test_a_broken_model_is_named(scripted, states, windows):
    broken = Scripted(
        {context: {0: math.nan} for context in scripted[BASE].table}, scripted[BASE].vocabulary
    )
    with pytest.raises(ComposerError, match=r"'trained' gives no finite .* state000"):
        measure(states[:1], [Arm(BASE, scripted[BASE]), Arm("trained", broken)], windows)


def test_a_template_that_nobody_can_read_is_said(tokenizer, scripted, states):
    other = copy.deepcopy(tokenizer)
    other.chat_template = tokenizer.chat_template + "{# mine #}"
    with pytest.raises(InputError, match="cannot be parsed"):
        measure(states, arms(scripted), Windows(other, LIMITS))


def test_batches_keep_to_both_limits(rows):
    for tokens, logits in ((900, 10**9), (10**9, 60 * 100), (1, 1)):
        packed = batches(rows, tokens=tokens, logits=logits, vocabulary=100, answer=10)
        assert sorted(r.state.state_id for b in packed for r in b) == [
            r.state.state_id for r in rows
        ]
        for batch in packed:
            longest = max(r.longest for r in batch)
            width = max(
                max(len(r.prompt_ids), len(r.hinted_ids)) + max(r.longest, 10) for r in batch
            )
            assert len(batch) == 1 or len(batch) * longest * 100 <= logits
            assert len(batch) == 1 or len(batch) * width <= tokens
    assert len(batches(rows, tokens=10**9, logits=10**9, vocabulary=100, answer=10)) == 1
