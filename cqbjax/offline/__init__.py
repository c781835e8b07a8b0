"""What learns from a seed's offline split before its run: routers and projection heads."""

from cqbjax.offline.fits import Learnt, Projected, Trained

__all__ = ["Learnt", "Projected", "Trained"]
