"""The model that is trained, as the channels see it: hidden states and log-probabilities.

Belongs here: running rows through a model, with the adapter on or off. Does not belong here:
losses (``trainers.trl.channels``) and the training loop (``trainers.trl.composer``). Imports no
TRL, so that the base pass starts quickly.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from composer_pipeline.losses.token_logps import token_logps
from trainers.trl.rows.batches import Row, backbone_and_head, logit_transform, response_states


class Student:
    """A causal language model, bare or with a LoRA adapter.

    Args:
        model: not wrapped by any parallelism.
        pad: id of padding positions.
        device: where to compute.
        autocast: opened around each forward.

    Raises:
        InputError: the model's head has a bias.
    """

    #: Whether the states come out of a forward that rows share.
    shared = False

    def __init__(
        self,
        model: Any,
        *,
        pad: int,
        device: Any,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        backbone_and_head(model)
        self.transform = logit_transform(model)
        self.model, self.pad, self.device, self._autocast = model, pad, device, autocast

    @property
    def head(self) -> Tensor:
        """The output embedding, (V, H)."""
        return backbone_and_head(self.model)[1]

    @property
    def has_adapter(self) -> bool:
        """Whether a LoRA adapter can be switched off."""
        return hasattr(self.model, "disable_adapter")

    def parameters(self) -> list[Tensor]:
        """Return the trained parameters: the adapter's only, with LoRA."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Return the states (N, H) that predict the rows' selected tokens, and these (N,)."""
        backbone, _ = backbone_and_head(self.model)
        with self._autocast():
            return response_states(backbone, rows, self.pad, self.device)

    def logps(self, rows: Sequence[Row]) -> list[Tensor]:
        """Return log p of each row's selected tokens at temperature 1, (n,) a row."""
        states, ids = self.states(rows)
        with self._autocast():
            # Temperature 1: TRL's own fused head divides by its sampling temperature.
            values = token_logps(states, self.head, ids, transform=self.transform)
        return list(values.split([row.size for row in rows]))

    def base(self) -> AbstractContextManager[Any]:
        """Switch the adapter off: the model as it was before training.

        Raises:
            RuntimeError: there is no adapter.
        """
        if not self.has_adapter:
            raise RuntimeError("a model without adapter has no base inside")
        context: AbstractContextManager[Any] = self.model.disable_adapter()
        return context


def frozen_copy(student: Student) -> Student:
    """Return a copy of the model that nothing trains; costs its memory once more."""
    import copy

    model = copy.deepcopy(student.model).eval().requires_grad_(False)
    return Student(model, pad=student.pad, device=student.device, autocast=student._autocast)
