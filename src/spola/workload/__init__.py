"""Request mixes and arrivals, from fixed seeds: what ``bench serve`` sends and the planner simulates."""

from spola.workload.arrivals import arrivals
from spola.workload.mixes import DATASETS, Item, Mix, mix
from spola.workload.text import materialize

__all__ = ["DATASETS", "Item", "Mix", "arrivals", "materialize", "mix"]
