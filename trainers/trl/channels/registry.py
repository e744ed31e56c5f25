"""The channels of the composer loss: GRPO, SDPO, DPO and SFT, one module each.

Belongs here: building them for a trainer. Does not belong here: the step that runs them
(``trainers.trl.trainer``).
"""

from typing import Any

from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import TrainingData, loss_factors
from trainers.trl.base_scores import BaseScores
from trainers.trl.channels.base import Channel
from trainers.trl.channels.grpo import Grpo, TrlLoss, mean_length
from trainers.trl.channels.preference import Dpo, Sft
from trainers.trl.channels.sdpo import Sdpo
from trainers.trl.policy import Student, teacher
from trainers.trl.rows import planned, rows_of
from trainers.trl.sampling import Sampler


def channels_of(
    recipe: TrainingRecipe,
    data: TrainingData,
    base: BaseScores,
    student: Student,
    trl_loss: TrlLoss,
    sampler: Sampler | None,
    slot: int,
) -> list[Channel[Any]]:
    """Return the weighted channels of a recipe, in the order of their work.

    Args:
        recipe: weights and options.
        data: rows.
        base: what the base model thinks of them.
        student: the model that is trained.
        trl_loss: TRL's loss of a batch of answers.
        sampler: where the model answers too.
        slot: 0-based replica.

    Raises:
        InputError: a weighted channel has no row.
    """
    built: list[Channel[Any]] = []
    plans = planned(recipe, data, slot)
    for name, weight in recipe.channels.weights().items():
        rows = rows_of(data, name)
        given = (rows, plans[name], recipe.channels.rows_per_step()[name], weight)
        if name == "grpo":
            built.append(
                Grpo(
                    *given,
                    trl_loss=trl_loss,
                    limit=recipe.data.max_completion_tokens,
                    length=mean_length(data.groups),
                    threshold=recipe.channels.grpo.off_policy_threshold,
                    base_logps=base.answers(),
                    sampler=sampler,
                    recorded=recipe.channels.grpo.recorded,
                )
            )
        elif name == "sdpo":
            options = recipe.channels.sdpo
            built.append(
                Sdpo(
                    *given,
                    options=options,
                    teacher=teacher(options.teacher, student, ema_rate=options.ema_rate),
                    steps=recipe.total_steps,
                    gains=base.gains(),
                    base_logps=base.failed(),
                )
            )
        elif name == "dpo":
            # Factors over all rows, not a replica's share: every replica weights alike.
            built.append(
                Dpo(
                    *given,
                    references=base.references(),
                    factors=loss_factors(data.pairs),
                    options=recipe.channels.dpo,
                )
            )
        else:
            built.append(Sft(*given))
    return built
