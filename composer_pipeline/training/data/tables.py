"""Which tables of the lake feed which channel.

Belongs here: names. Does not belong here: reading (``training.data.build``).
"""

from composer_pipeline.training.recipe import Channels

_SFT = {
    "consensus": ("dataset_groups",),
    "successes": ("dataset_successes",),
    "both": ("dataset_groups", "dataset_successes"),
}
#: Channel to the tables that are looked up besides.
_ALSO = {"sdpo": ("dataset_groups",)}


def feeds(channels: Channels) -> dict[str, tuple[str, ...]]:
    """Return each weighted channel's tables; a row of them is a row of the channel."""
    every = {
        "grpo": ("dataset_groups",),
        "sdpo": ("dataset_hints",),
        "dpo": ("dataset_pairs",),
        "sft": _SFT[channels.sft.source],
    }
    return {channel: every[channel] for channel in channels.weights()}


def tables_of(channels: Channels) -> list[str]:
    """Return the tables whose content decides the rows of the weighted channels, sorted."""
    read = {t for name, tables in feeds(channels).items() for t in (*tables, *_ALSO.get(name, ()))}
    if "grpo" in channels.weights() and "outcome" in channels.grpo.rewards:
        read.add("dataset_hints")  # which of the agent's actions failed
    return sorted(read)
