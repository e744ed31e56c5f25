"""The student: a Llama of 0.3 million parameters that has seen recorded sessions only.

    python -m examples.proof.toolworld.student --write

makes ``base/`` again (about five minutes; other processors may round the last bits otherwise).
It learns to do what the agent did, mistakes included, and to follow feedback that it is shown;
it never sees a held-out world.
"""

import argparse
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from composer_pipeline.chat.convert import action_message, to_chat
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.hints import build_hints
from composer_pipeline.states.load import load_states
from composer_pipeline.traces.ingest import ingest
from composer_pipeline.training.recipe import Data
from composer_pipeline.training.windows import Windows
from examples.proof.toolworld.world import (
    BUGS,
    FILES,
    PROJECT,
    SYMBOLS,
    WORDS,
    sessions,
    write_files,
    write_session,
)
from scripts.sample_sessions.authoring import REJECTED, STOPPED

PAD, END, START, UNKNOWN = "<|pad|>", "<|im_end|>", "<|im_start|>", "<unk>"
#: The system message of ``chat`` and the first words of a hint in ``training.windows``; a test
#: finds an unknown word where one of them changes.
SYSTEM = (
    "You are a coding agent that works in a user's repository through tools.\n"
    "Do the next step of the task: call the tools that it needs, or answer in text when the"
    " task is done or you need to ask.\n"
    f"Working directory: {PROJECT.cwd}\nPlatform: unknown"
)
HINT = "Feedback about the next step: "
TOOLS = ("Read", "Edit", "Bash", "Open")
_PHRASES = (
    "system\n", "user\n", "assistant\n", "\n", "\n\n",
    SYSTEM,
    "Fix ", " in ", ".py", ".", "?",
    '<tool_call>\n{"name": "',
    f'", "arguments": {{"file_path": "{PROJECT.cwd}/',
    f'", "arguments": {{"file_path": "{PROJECT.cwd}/src/',
    '", "old_string": "', '", "new_string": "',
    '", "arguments": {"command": "pytest tests/test_', '", "arguments": {"command": "mypy ',
    '"}}\n</tool_call>',
    "<tool_response>\n", "\n</tool_response>",
    "     1→", "The file has been updated.", "1 passed in 0.01s", "Success: no issues found",
    "<tool_use_error>", "</tool_use_error>", "Error: No such tool available: Open. Use ",
    f"File does not exist. Did you mean {PROJECT.cwd}/",
    "PreToolUse:Edit hook error: ", "The line must be ", ":1: error: The line must be ",
    "Exit code 1\n", "Exit code 4\n", "ERROR: not found: tests/test_",
    "\nDid you mean tests/test_",
    REJECTED.rstrip(), STOPPED, "[Request interrupted by user for tool use]", "Run tests/test_",
    HINT,
)  # fmt: skip


def words() -> list[str]:
    """Return the vocabulary; a word's place is its id."""
    numbered = (("f", FILES), ("s", SYMBOLS), ("b", BUGS), ("w", WORDS))
    names = [f"{letter}{i}" for letter, count in numbered for i in range(count)]
    return [PAD, END, START, UNKNOWN, *_PHRASES, *TOOLS, *names]


def tokenizer() -> Any:
    """Return the tokenizer with its chat template."""
    import trl
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = words()
    plain = sorted(vocabulary[4:], key=len, reverse=True)
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, UNKNOWN))
    # The longest phrase first; what stands between phrases is one unknown word.
    pattern = Regex("|".join(map(re.escape, plain)))
    made.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    made.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token=PAD, eos_token=END, unk_token=UNKNOWN,
        additional_special_tokens=[START],
    )  # fmt: skip
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5_training.jinja"
    fast.chat_template = template.read_text(encoding="utf-8")
    return fast


#: Token budgets that the longest state of the small world fits.
WINDOW = Data(
    max_prompt_tokens=224, max_completion_tokens=24, max_tools_tokens=0, max_dropped_share=0.95
)
SESSIONS, STEPS, BATCH, HINTED = 2000, 1500, 16, 8
#: Weight of a token that is no part of an action: what users and tools say.
LANGUAGE = 0.1
LEARNING_RATE = 3e-3


def base_dir() -> Path:
    """Return the folder of the base checkpoint."""
    return Path(__file__).parent / "base"


@dataclass(frozen=True)
class _Text:
    """Ids of a text, and for each the weight of its −log p."""

    ids: list[int]
    weights: list[float]


def pretrain(folder: Path, steps: int = STEPS) -> float:
    """Make the base checkpoint in ``folder``; return the loss of its last step, in nats."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    words = tokenizer()
    torch.set_num_threads(1)  # the same sums everywhere
    random = Random(0)  # noqa: S311  nothing here is a secret
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words), hidden_size=96, intermediate_size=192, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256,
            tie_word_embeddings=True, pad_token_id=words.pad_token_id, bos_token_id=None,
            eos_token_id=words.eos_token_id,
        )
    )  # fmt: skip
    recorded, hinted = _texts(random, words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    value = 0.0
    for step in range(steps):
        drawn = random.sample(recorded, BATCH) + random.sample(hinted, HINTED)
        loss = _nll(model, drawn, words.pad_token_id)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        value = float(loss.detach())
        if step % 50 == 0:
            print(f"step {step} of {steps}: {value:.3f} nats", flush=True)
    # Half precision: half the file, and the arms start from what is in the file.
    model.to(torch.float16).save_pretrained(str(folder))
    words.save_pretrained(str(folder))
    return value


def _texts(random: Random, words: Any) -> tuple[list[_Text], list[_Text]]:
    """Return recorded sessions, and mistaken states with their hint and what it asks for."""
    written = [write_session(r, f"base-{i}") for i, r in enumerate(sessions(random, SESSIONS))]
    truth = {message: session.recorded for session in written for message in session.truth}
    windows = Windows(words, WINDOW)
    by_session: dict[str, list[_Text]] = {}
    hinted: list[_Text] = []
    with tempfile.TemporaryDirectory() as scratch:
        write_files(written, Path(scratch) / "projects")
        lake = Lake(f"{scratch}/lake")
        ingest(lake, [Path(scratch) / "projects"])
        build_hints(lake)
        lessons = {row["state_id"]: row["text"] for row in lake.rows("hints")}
        for state in load_states(lake):
            window, tools = windows.window(to_chat(state).messages, [])
            own = windows.response_ids(window, tools, action_message(state.action))
            text = _text(windows.prompt_ids(window, tools), own)
            by_session.setdefault(state.session_id, []).append(text)
            if lesson := lessons.get(state.state_id):
                told = windows.prompt_ids(windows.hinted(window, lesson), tools)
                recorded = truth[state.message_id]
                asked = action_message(recorded.world.told(wrong=recorded.noisy))
                hinted.append(_text(told, windows.response_ids(window, tools, asked)))
    return [_joined(states) for states in by_session.values()], hinted


def _text(prompt: list[int], response: list[int]) -> _Text:
    return _Text(prompt + response, [LANGUAGE] * len(prompt) + [1.0] * len(response))


def _joined(states: list[_Text]) -> _Text:
    """Return the longest state of a session, in which the actions of all states count."""
    last = max(states, key=lambda text: len(text.ids))
    weights = list(last.weights)
    for text in states:
        for place, weight in enumerate(text.weights):
            # An agent's own words after a prompt that it shares with other states.
            if text.ids[: place + 1] == last.ids[: place + 1]:
                weights[place] = max(weights[place], weight)
    return _Text(last.ids, weights)


def _nll(model: Any, texts: list[_Text], pad: int) -> Any:
    """Return the weighted token mean of −log p."""
    import torch
    from torch.nn.functional import cross_entropy

    width = max(len(text.ids) for text in texts)
    ids = torch.full((len(texts), width), pad)
    weights = torch.zeros((len(texts), width))
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)] = torch.tensor(text.ids)
        weights[row, : len(text.ids)] = torch.tensor(text.weights)
    logits = model(input_ids=ids, attention_mask=(ids != pad).long()).logits
    losses = cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    return (losses * weights[:, 1:]).sum() / weights[:, 1:].sum()


def main() -> int:
    """Make the checkpoint again."""
    parser = argparse.ArgumentParser(prog="python -m examples.proof.toolworld.student")
    parser.add_argument("--write", action="store_true", required=True)
    parser.add_argument("--out", type=Path, default=base_dir())
    options = parser.parse_args()
    print(f"loss of the last step {pretrain(options.out):.3f}, written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
