"""The states of groups, of both kinds; what they mean is said where they change."""

from __future__ import annotations

from enum import StrEnum


class GroupState(StrEnum):
    """As it is shown to clients."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"  # of classic groups, as the next one
    COMPLETING = "CompletingRebalance"
    RECONCILING = "Reconciling"  # of consumer groups
    STABLE = "Stable"
    DEAD = "Dead"
