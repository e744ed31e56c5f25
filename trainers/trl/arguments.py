"""A recipe as the arguments of TRL's ``GRPOTrainer``.

Belongs here: the mapping. Does not belong here: defaults, which are the recipe's.
"""

from pathlib import Path

import torch
from trl import GRPOConfig

from composer_pipeline.training.recipe import TrainingRecipe


def arguments(recipe: TrainingRecipe, output_dir: Path) -> GRPOConfig:
    """Return the trainer's arguments.

    TRL sees one batch an optimizer step: micro-batches are ``ComposerTrainer``'s own, since
    TRL's are a number of rows, whatever their length.
    """
    grpo, cuda = recipe.channels.grpo, torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(output_dir),
        # All of the run's steps: a restarted replica is stopped by DiLoCo when it is over.
        max_steps=recipe.total_steps,
        per_device_train_batch_size=grpo.group_size,
        gradient_accumulation_steps=1,
        num_generations=grpo.group_size,
        max_completion_length=recipe.data.max_completion_tokens,
        # Dr. GRPO: no length or standard-deviation normalisation, no reference KL.
        loss_type="dr_grpo",
        scale_rewards="none",
        beta=0.0,
        off_policy_mask_threshold=grpo.off_policy_threshold,
        temperature=1.0,
        learning_rate=recipe.learning_rate,
        # Muon is made by the trainer itself (``trainers.trl.muon``): transformers has none.
        optim="adamw_torch" if recipe.optimizer == "muon" else recipe.optimizer,
        lr_scheduler_type="constant_with_warmup"
        if recipe.schedule == "constant"
        else recipe.schedule,
        warmup_steps=recipe.warmup_steps,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        seed=recipe.seed,
        bf16=recipe.dtype == "bf16",
        activation_checkpointing=recipe.activation_checkpointing,
        # The reentrant kind fails where a step has several forwards.
        activation_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=not cuda,
        dataloader_pin_memory=cuda,
        shuffle_dataset=False,
        save_strategy="no",
        report_to=list(recipe.report_to) or "none",
        logging_steps=1,
        disable_tqdm=True,
    )
