"""What a model costs, holds and is called today, by the provider's own catalogue.

Does not belong here: estimates of a replay (``replay.plan``) and spending.
"""

from composer_pipeline.replay.catalogue.fetch import Catalogue, Verdict, fetch, preflight, terms_of
from composer_pipeline.replay.catalogue.model_records import ModelRecord, Prices, Pricing
from composer_pipeline.replay.catalogue.price_bounds import MILLION, per_million

__all__ = [
    "MILLION",
    "Catalogue",
    "ModelRecord",
    "Prices",
    "Pricing",
    "Verdict",
    "fetch",
    "per_million",
    "preflight",
    "terms_of",
]
