"""Answers that the policy itself gives to recorded states, and their rewards.

An answer is one action from one state: nothing runs it, and no later state follows from it.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from composer_pipeline.errors import InputError
from composer_pipeline.training.chat_template import AnswerReader
from composer_pipeline.training.rewards import Case, Grade, Grader
from composer_pipeline.training.rows import Group
from trainers.common.ranks import Ranks, distribute

#: From prompts as ids to one completion each, as ids.
Generate = Callable[[list[list[int]]], list[list[int]]]


class Sampler:
    """Samples answers to groups' states with TRL and grades them; every rank gets all answers."""

    def __init__(
        self, generate: Generate, tokenizer: Any, grader: Grader, *, size: int, seed: str,
        ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        self._generate, self._size, self._seed = generate, size, seed
        self._ranks = ranks or Ranks()
        self._grader = grader
        #: Mean value of each part of the reward over the answers of the last step.
        self.parts: dict[str, float] = {}
        try:
            self._reader = AnswerReader(tokenizer)
        except InputError as error:
            raise InputError(
                f"recipe field channels.grpo.source: {error}; use 'recorded'"
            ) from error

    def sample(
        self, groups: Sequence[Group], step: int
    ) -> list[tuple[list[list[int]], list[int], list[float]]]:
        """Return distinct answers, counts and rewards for each group; deterministic in ``step``."""
        completions = self._sampled(groups, step)
        out, self.parts = [], {}
        for i, group in enumerate(groups):
            own = completions[i * self._size : (i + 1) * self._size]
            counts = Counter(tuple(answer) for answer in own if answer)
            answers = [list(answer) for answer in counts]
            grades = [self.grade(group, answer) for answer in answers]
            for count, grade in zip(counts.values(), grades, strict=True):
                for name, part in grade.parts.items():
                    share = count / len(completions)
                    self.parts[name] = self.parts.get(name, 0.0) + part.value * share
            out.append((answers, list(counts.values()), [grade.value for grade in grades]))
        return out

    def _sampled(self, groups: Sequence[Group], step: int) -> list[list[int]]:
        """Return ``size`` answers to each group, from all ranks."""
        ranks = self._ranks
        lengths = [len(group.prompt_ids) for group in groups]
        hands = distribute(range(len(groups)), lengths, ranks.size)
        # A sharded model generates on all ranks: one without a group samples a discarded one.
        mine = hands[ranks.rank] or [0] * ranks.lockstep
        prompts = [list(groups[i].prompt_ids) for i in mine for _ in range(self._size)]
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        answers: list[list[int]] = []
        failed = ""
        with torch.random.fork_rng(devices=devices):
            own = f"/{ranks.rank}" if ranks.several else ""
            torch.manual_seed(_number(f"{self._seed}/{step}{own}"))
            try:
                answers = self._generate(prompts) if prompts else []
            except torch.OutOfMemoryError as error:
                if not ranks.several or ranks.lockstep:
                    raise
                failed = str(error)
        everyone = ranks.gather((answers, failed))
        if reason := next((reason for _, reason in everyone if reason), ""):
            raise torch.OutOfMemoryError(reason)
        out: list[list[int]] = [[]] * (len(groups) * self._size)
        for hand, (found, _) in zip(hands, everyone, strict=True):
            for k, i in enumerate(hand):
                own_answers = slice(k * self._size, (k + 1) * self._size)
                out[i * self._size : (i + 1) * self._size] = found[own_answers]
        return out

    def grade(self, group: Group, answer: Sequence[int]) -> Grade:
        """Return an answer's grade; one cut before its end token scores as an invalid call."""
        if not self._reader.ended(answer):
            return Grade(-self._grader.weights.get("validity", 0.0), {})
        case = Case.from_json(group.case)
        message = self._reader.message(answer, group.prompt_ids, case.tools)
        return self._grader.grade(message, case)


def _number(text: str) -> int:
    """Return a seed that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
