"""What every part of a recipe is: strict, frozen, and described by its docstrings.

Belongs here: pydantic's settings. Does not belong here: any field.
"""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Unknown keys and numbers that are not finite are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
