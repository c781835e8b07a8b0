"""ACQB's prior from logs: theta_0 and V_0 of a seed's offline split, brought to its pool.

With f the contexts that ACQB sees (the embedding, perhaps through the head, perhaps with a constant
coordinate), n offline prompts F [n, e] and their departures,

    theta_0   the maximum likelihood of the departures, ridge-regularised (`logistic`),
    V_0       lambda0 I + weight F'F, for all servers, since every LLM answered every prompt,

ACQB starts at N(theta_0, alpha^2 V_0^-1) instead of N(0, alpha^2 I / lambda0), and its loss has
1/2 (theta_j - theta_0j)' V_0 (theta_j - theta_0j) in place of lambda0 / 2 |theta_j|^2. That is
ACQB itself on contexts sqrt(lambda0) V_0^(-1/2) x, whose utilities are known but for what is to be
learnt: x'theta_0 + x~'theta~. So nothing in ACQB knows of priors but the offset.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from cqbjax.core.files import ARRAYS
from cqbjax.offline.contrastive import ContrastiveConfig
from cqbjax.offline.fits import Data, kept, one_thread
from cqbjax.offline.heads import contexts
from cqbjax.offline.routers.logistic import fit_log_odds
from cqbjax.policies import append_intercept


class Settings(NamedTuple):
    """What decides a prior, as in `policies.Warm`; lambda0 is ACQB's."""

    weight: float
    ridge: float
    share: float
    head: ContrastiveConfig | None
    lambda0: float


class Prior(NamedTuple):
    """What a seed's pool knows from the offline split.

    Attributes:
        contexts: [I, e] sqrt(lambda0) V_0^(-1/2) f(x) of each prompt of the pool.
        offset: [I, N] f(x)'theta_0j.
    """

    contexts: np.ndarray
    offset: np.ndarray


def extended(embeddings: np.ndarray, share: float) -> np.ndarray:
    """Return the contexts f before they are whitened: [..., d] -> [..., e] in float64."""
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
        weight: what an offline prompt counts in V_0 beside a round's query.
        ridge: of the fit of theta_0.
        lambda0: ACQB's.
    """
    import scipy.linalg  # slow to import: where one fits

    theta, _ = fit_log_odds(offline, departure, ridge, intercept=False)
    design = lambda0 * np.eye(offline.shape[1]) + weight * offline.T @ offline
    # V_0 = L L', so L^-T is a root of its inverse.
    root = scipy.linalg.cholesky(design, lower=True)
    whitened = scipy.linalg.solve_triangular(root, pool.T, lower=True).T
    return Prior(np.sqrt(lambda0) * whitened, pool @ theta.T)


def pool_priors(label: str, settings: Settings, data: Data, seeds: Sequence[int]) -> list[Prior]:
    """Return each seed's prior, fitted on its offline split or kept.

    Args:
        label: of the policy, for the progress bar.
        settings: of all seeds.
        data: from `fits.read`.
        seeds: [S] of the runs.
    """
    source = data.source
    features = dict.fromkeys(seeds, data.embeddings)
    if settings.head is not None:
        every = np.arange(len(data.embeddings))
        features = contexts(settings.head, data, dict.fromkeys(seeds, every), label)

    def fit(seeds: Sequence[int]) -> Iterator[dict[str, np.ndarray]]:
        for seed in seeds:
            parts, shown = source.split(seed), extended(features[seed], settings.share)
            with one_thread():
                prior = fit_prior(
                    shown[parts.offline], source.probabilities[parts.offline], shown[parts.pool],
                    settings.weight, settings.ridge, settings.lambda0,
                )  # fmt: skip
            yield {name: part.astype(np.float32) for name, part in prior._asdict().items()}

    depends_on = (settings, data.rho, source.departure_digest)
    paths = {seed: data.path(seed, ARRAYS, __name__, depends_on) for seed in seeds}
    made = kept(data, f"fitting {label}", paths, ARRAYS, fit)
    return [Prior(**one) for one in made.values()]
