"""User dynamics and service dynamics: where a scenario differs from the paper's.

Users wait, return or abandon. The service has channels and service times, outages, delayed or lost
feedback, and prices.
"""

from cqbjax.dynamics.feedback import DelayedFeedback, LostFeedback
from cqbjax.dynamics.outages import Outages
from cqbjax.dynamics.prices import Prices
from cqbjax.dynamics.service_channels import ServiceChannels, ServiceTimes, SingleChannel
from cqbjax.dynamics.users import Impatience, Orbit, PersistentUsers, count_rounds

__all__ = [
    "DelayedFeedback", "Impatience", "LostFeedback", "Orbit", "Outages", "PersistentUsers",
    "Prices", "ServiceChannels", "ServiceTimes", "SingleChannel", "count_rounds",
]  # fmt: skip
