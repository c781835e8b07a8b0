"""ACQB's prior from logs: theta_0 and V_0 of a seed's offline split, applied to its pool.

With f the contexts of ACQB (the embedding, optionally projected by the head and extended by a
constant coordinate), n offline prompts F [n, e] and their departures,

    theta_0   the maximum likelihood of the departures, ridge-regularised (`logistic`),
    V_0       lambda0 I + weight F'F, for all servers, since every LLM answered every prompt,

ACQB starts at N(theta_0, alpha^2 V_0^-1) instead of N(0, alpha^2 I / lambda0), and its loss has
1/2 (theta_j - theta_0j)' V_0 (theta_j - theta_0j) in place of lambda0 / 2 |theta_j|^2. That equals
ACQB on contexts x~ = sqrt(lambda0) V_0^(-1/2) x with utilities x'theta_0 + x~'theta~, where theta~
is estimated. The offset x'theta_0 is therefore all that ACQB needs to know of the prior.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.fits import FitData
from cqbjax.offline.projection import project_rows
from cqbjax.offline.routers.logistic import fit_log_odds
from cqbjax.policies import append_intercept


class Prior(NamedTuple):
    """Prior of a seed's pool from its offline split.

    Attributes:
        contexts: [I, e] sqrt(lambda0) V_0^(-1/2) f(x) of each prompt of the pool.
        offset: [I, N] f(x)'theta_0j.
    """

    contexts: np.ndarray
    offset: np.ndarray


def extend(embeddings: np.ndarray, share: float) -> np.ndarray:
    """Return the contexts f in float64, with a constant coordinate if share > 0: [..., e]."""
    if share == 0:
        return embeddings.astype(float)
    return np.asarray(append_intercept(jnp.asarray(embeddings, float), share), float)


def fit_prior(
    offline: np.ndarray, departure: np.ndarray, pool: np.ndarray,
    weight: float, ridge: float, lambda0: float,
) -> Prior:  # fmt: skip
    """Return the prior of a pool.

    Args:
        offline: [n, e] contexts f of the offline prompts.
        departure: [n, N] their departure probabilities.
        pool: [I, e] contexts of the pool's prompts.
        weight: weight of an offline prompt in V_0; a round's query has weight 1.
        ridge: ridge weight in the fit of theta_0.
        lambda0: ACQB's.
    """
    import scipy.linalg  # slow to import

    theta, _ = fit_log_odds(offline, departure, ridge, intercept=False)
    design = lambda0 * np.eye(offline.shape[1]) + weight * offline.T @ offline
    # V_0 = L L', so L^-T is a root of its inverse.
    root = scipy.linalg.cholesky(design, lower=True)
    whitened = scipy.linalg.solve_triangular(root, pool.T, lower=True).T
    return Prior(np.sqrt(lambda0) * whitened, pool @ theta.T)


def fit_priors(
    label: str, data: FitData, seeds: Sequence[int], weight: float, ridge: float, lambda0: float,
    share: float, head: ContrastiveConfig | None,
) -> dict[int, dict[str, np.ndarray]]:  # fmt: skip
    """Fit each seed's `Prior` on its offline split, or load it from the cache.

    Args:
        label: label of the policy, for the progress bar.
        data: from `make_fit_data`.
        seeds: [S] seeds of the runs.
        weight: as in `fit_prior`.
        ridge: as in `fit_prior`.
        lambda0: as in `fit_prior`.
        share: as in `extend`.
        head: as in `policies.WarmStart`.
    """
    source = data.source
    features = dict.fromkeys(seeds, source.embeddings)
    if head is not None:
        every = np.arange(len(source.embeddings))
        features = project_rows(head, data, dict.fromkeys(seeds, every), label)

    def fit(seed: int) -> list[dict[str, np.ndarray]]:
        parts, contexts = source.split(seed), extend(features[seed], share)
        prior = fit_prior(
            contexts[parts.offline], source.probabilities[parts.offline], contexts[parts.pool],
            weight, ridge, lambda0,
        )  # fmt: skip
        return [{name: part.astype(np.float32) for name, part in prior._asdict().items()}]

    settings = dict.fromkeys(seeds, (weight, ridge, lambda0, share, head))
    return data.fit_or_load("prior", f"fitting {label}", settings, fit)
