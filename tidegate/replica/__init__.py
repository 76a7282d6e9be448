"""SQL from outside: a separate process with a copy of the tables, fed by the engine's merges.

>>> from tidegate.replica import Limits, ReplicaProcess
>>> Limits(timeout_s=5).timeout_s
5
"""

from tidegate.replica.limits import Limits
from tidegate.replica.process import ReplicaProcess

__all__ = ["Limits", "ReplicaProcess"]
