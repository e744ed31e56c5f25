"""Answers that the model itself gives to recorded states, and their rewards.

Belongs here: sampling through TRL, and grading an answer. Does not belong here: what becomes of a
group (``trainers.trl.channels.grpo``), reading an answer back into a message
(``composer_pipeline.training.answers``) and the reward's formula
(``composer_pipeline.training.rewards``).

An answer is one action from one state: nothing runs it, and no later state follows from it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from composer_pipeline.errors import InputError
from composer_pipeline.training.answers import AnswerReader
from composer_pipeline.training.data import Group
from composer_pipeline.training.rewards import action_match

#: From prompts as ids to one completion each, as ids.
Generate = Callable[[list[list[int]]], list[list[int]]]


class Sampler:
    """Samples answers to a group's state and grades them.

    Args:
        generate: TRL's generation with the policy as it is.
        tokenizer: whose chat template wrote the prompts.
        size: answers to a state.
        seed: of the run and replica; with the step it fixes what is sampled.

    Raises:
        InputError: the template's answers cannot be read back into messages.
    """

    def __init__(self, generate: Generate, tokenizer: Any, *, size: int, seed: str) -> None:
        self._generate, self._size, self._seed = generate, size, seed
        try:
            self._reader = AnswerReader(tokenizer)
        except InputError as error:
            raise InputError(
                f"recipe field channels.grpo.source: {error}; use 'recorded'"
            ) from error

    def sample(
        self, groups: Sequence[Group], step: int
    ) -> list[tuple[list[list[int]], list[int], list[float]]]:
        """Return distinct answers, counts and rewards for each group.

        Args:
            groups: states with their consensus.
            step: optimizer step of the run; the same step samples the same answers.
        """
        prompts = [list(group.prompt_ids) for group in groups for _ in range(self._size)]
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(_number(f"{self._seed}/{step}"))
            completions = self._generate(prompts)
        out = []
        for i, group in enumerate(groups):
            own = completions[i * self._size : (i + 1) * self._size]
            counts = Counter(tuple(answer) for answer in own if answer)
            answers = [list(answer) for answer in counts]
            rewards = [self.reward(group, answer) for answer in answers]
            out.append((answers, list(counts.values()), rewards))
        return out

    def reward(self, group: Group, answer: Sequence[int]) -> float:
        """Return the graded match of an answer with the group's consensus, in [0, 1].

        An answer that was cut before its end token, or that cannot be read, scores 0.
        """
        if not self._reader.ended(answer):
            return 0.0
        message = self._reader.message(answer, group.prompt_ids)
        return action_match(message, json.loads(group.consensus))


def _number(text: str) -> int:
    """Return a seed that is a function of the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
