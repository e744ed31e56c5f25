"""Answers that the model itself gives to recorded states, and their rewards.

Belongs here: sampling through TRL, and grading an answer. Does not belong here: what becomes of a
group (``trainers.trl.channels.registry.grpo``), reading an answer back into a message
(``composer_pipeline.training.answers``) and the reward's formula
(``composer_pipeline.training.rewards``).

An answer is one action from one state: nothing runs it, and no later state follows from it.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from composer_pipeline.errors import InputError
from composer_pipeline.training.answers import AnswerReader
from composer_pipeline.training.rewards import Case, Grade, Grader
from composer_pipeline.training.rows import Group
from trainers.trl.ranks import Ranks, dealt

#: From prompts as ids to one completion each, as ids.
Generate = Callable[[list[list[int]]], list[list[int]]]


class Sampler:
    """Samples answers to a group's state and grades them.

    Args:
        generate: TRL's generation with the policy as it is.
        tokenizer: whose chat template wrote the prompts.
        grader: says what an answer is worth.
        size: answers to a state.
        seed: of the run and replica; with step and rank it fixes what is sampled.
        ranks: each samples for its groups, and all get every answer.

    Raises:
        InputError: the template's answers cannot be read back into messages.
    """

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
        """Return distinct answers, counts and rewards for each group.

        Args:
            groups: states with their consensus.
            step: optimizer step of the run; the same step samples the same answers.
        """
        completions = self._sampled(groups, step)
        out, self.parts = [], {}
        for i, group in enumerate(groups):
            own = completions[i * self._size : (i + 1) * self._size]
            counts = Counter(tuple(answer) for answer in own if answer)
            answers = [list(answer) for answer in counts]
            grades = [self.grade(group, answer) for answer in answers]
            for count, grade in zip(counts.values(), grades, strict=True):
                for name, said in grade.parts.items():
                    share = count / len(completions)
                    self.parts[name] = self.parts.get(name, 0.0) + said.value * share
            out.append((answers, list(counts.values()), [grade.value for grade in grades]))
        return out

    def _sampled(self, groups: Sequence[Group], step: int) -> list[list[int]]:
        """Return ``size`` answers to each group, whoever sampled them."""
        ranks = self._ranks
        lengths = [len(group.prompt_ids) for group in groups]
        hands = dealt(range(len(groups)), lengths, ranks.size)
        # Where the model is in parts, who has no group samples one for nothing.
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
        told = ranks.gather((answers, failed))
        if any(reason for _, reason in told):
            raise torch.OutOfMemoryError(next(reason for _, reason in told if reason))
        out: list[list[int]] = [[]] * (len(groups) * self._size)
        for hand, (found, _) in zip(hands, told, strict=True):
            for k, i in enumerate(hand):
                own_answers = slice(k * self._size, (k + 1) * self._size)
                out[i * self._size : (i + 1) * self._size] = found[own_answers]
        return out

    def grade(self, group: Group, answer: Sequence[int]) -> Grade:
        """Return what an answer is worth at the group's state, and what each part said.

        An answer that was cut before its end token scores what an invalid call does: 0 without
        the part ``validity``.
        """
        if not self._reader.ended(answer):
            return Grade(-self._grader.weights.get("validity", 0.0), {})
        case = Case.from_json(group.case)
        message = self._reader.message(answer, group.prompt_ids, case.tools)
        return self._grader.grade(message, case)


def _number(text: str) -> int:
    """Return a seed that is a function of the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
