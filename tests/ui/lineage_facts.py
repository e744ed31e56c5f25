"""What a lineage page shows, as facts: how much of it is which colour, and what Dagster knows."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

#: The fill of a box that is done, and of one with something to do.
GREEN, GREY = (227, 246, 238), (234, 235, 239)
#: Pixels of a box at the page's own zoom, at least, as :func:`areas` counts them.
BOX = 600
#: Steps of colour that a small palette may be off.
OFF = 3

NODES = """{ assetNodes {
  assetKey { path } partitionStats { numPartitions numMaterialized numFailed }
  assetMaterializations(limit: 1) { timestamp }
  assetChecksOrError { ... on AssetChecks { checks { name
    executionForLatestMaterialization { status evaluation { severity } } } } } } }"""


def areas(picture: Path) -> dict[str, int]:
    """Return the pixels of a lineage picture that are inside of green or grey fill, or red.

    Inside is what has the colour five pixels around, so that lines and buttons' rims do not count.
    """
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    filled = {
        name: int(_inside(np.abs(pixels - fill).max(axis=2) <= OFF).sum())
        for name, fill in (("green", GREEN), ("grey", GREY))
    }
    red, green, blue = (pixels[:, :, n] for n in range(3))
    return {**filled, "red": int(((red > green + 40) & (red > blue + 40)).sum())}


def _inside(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    windows = np.lib.stride_tricks.sliding_window_view(mask, (5, 5))
    return np.asarray(windows.all(axis=(2, 3)))


def states(answer: Any) -> dict[str, str]:
    """Return asset -> green, grey or red, from what Dagster answers to :data:`NODES`."""
    found = {}
    for node in answer["assetNodes"]:
        parts = node["partitionStats"]
        done = (
            parts["numMaterialized"] == parts["numPartitions"]
            if parts
            else bool(node["assetMaterializations"])
        )
        failed = bool(parts and parts["numFailed"]) or any(map(_red, _checks(node)))
        found["/".join(node["assetKey"]["path"])] = "red" if failed else "green" if done else "grey"
    return found


def _checks(node: Any) -> list[Any]:
    return list((node["assetChecksOrError"] or {}).get("checks", []))


def _red(check: Any) -> bool:
    """Return whether a check is an error; one that warns is not."""
    last = check["executionForLatestMaterialization"]
    if last is None or last["status"] in ("SUCCEEDED", "IN_PROGRESS", "SKIPPED"):
        return False
    said = last["evaluation"]
    return said is None or said["severity"] != "WARN"
