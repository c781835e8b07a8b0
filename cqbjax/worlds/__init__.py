"""Worlds beside the paper's: kinds of users (who are not satisfied) and of service, a file each."""

from cqbjax.worlds.count import Count, One
from cqbjax.worlds.impatient import Impatient
from cqbjax.worlds.late import Late
from cqbjax.worlds.lost import Lost
from cqbjax.worlds.orbit import Orbit, in_rounds
from cqbjax.worlds.outages import Outages
from cqbjax.worlds.prices import Prices
from cqbjax.worlds.rounds import Rounds
from cqbjax.worlds.stay import Stay

__all__ = ["Count", "Impatient", "Late", "Lost", "One", "Orbit", "Outages", "Prices", "Rounds",
           "Stay", "in_rounds"]  # fmt: skip
