"""Worlds beside the paper's: kinds of users (who are not satisfied) and of service, a file each."""

from cqbjax.dynamics.count import Count, One
from cqbjax.dynamics.impatient import Impatient
from cqbjax.dynamics.late import Late
from cqbjax.dynamics.lost import Lost
from cqbjax.dynamics.orbit import Orbit, in_rounds
from cqbjax.dynamics.outages import Outages
from cqbjax.dynamics.prices import Prices
from cqbjax.dynamics.rounds import Rounds
from cqbjax.dynamics.stay import Stay

__all__ = ["Count", "Impatient", "Late", "Lost", "One", "Orbit", "Outages", "Prices", "Rounds",
           "Stay", "in_rounds"]  # fmt: skip
