"""When an asset is too old: its freshness policy.

Belongs here: policies, which look at an asset as a whole. Does not belong here: which day is
missing (``assets.checks``) and who is told (``assets.automation``).
"""

from datetime import timedelta

import dagster as dg

#: For what ``nightly_harvest`` makes. A night without new sessions makes nothing, so a weekend is
#: no fault: a warning after four days, overdue after eight. Paid and unpartitioned assets have
#: none: they wait for their owner.
NIGHTLY = dg.FreshnessPolicy.time_window(
    warn_window=timedelta(days=4), fail_window=timedelta(days=8)
)
