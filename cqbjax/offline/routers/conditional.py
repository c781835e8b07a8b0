"""CONDITIONAL: the best LLM for a query given which LLMs failed it.

Naive Bayes over latent types of prompts, without EM: types are clusters of graded rows.
"""

from dataclasses import dataclass

import numpy as np

from cqbjax.offline.routers.base import Floats, OfflineSplit, Router, cluster

# The log-probability of types without prompts; with few prompts there are fewer clusters.
NEVER = -1e9
# Probabilities of a departure are at least this far from 0 and 1.
UNSURE = 0.002


@dataclass(frozen=True)
class FittedTypes:
    """A trained router on types.

    Attributes:
        offline: [n, d] embeddings.
        members: [n, G] whether a prompt is of a type.
        types: [G, N] probability of a departure.
        temperature: as in `Conditional`.
        floor: as in `Conditional`.
    """

    offline: Floats
    members: Floats
    types: Floats
    temperature: float
    floor: float

    def weigh(self, embeddings: Floats) -> Floats:
        """Return the probability of each type for embeddings [P, d]: [P, G]."""
        from sklearn.metrics.pairwise import cosine_similarity  # slow to import

        cosine = cosine_similarity(embeddings, self.offline)
        near = np.exp((cosine - cosine.max(axis=1, keepdims=True)) / self.temperature)
        near /= near.sum(axis=1, keepdims=True)
        return (1 - self.floor) * near @ self.members + self.floor * self.members.mean(axis=0)

    def predict(self, embeddings: Floats) -> Floats:
        """Predict the log-odds of a departure at a first attempt: [P, d] -> [P, N]."""
        departure = self.weigh(embeddings) @ self.types
        return np.log(departure) - np.log1p(-departure)

    def predict_types(self, embeddings: Floats) -> dict[str, Floats]:
        """Return `scores`, log-probabilities of types [P, G], and `types`, their departures."""
        weights = self.weigh(embeddings)
        scores = np.log(weights, where=weights > 0, out=np.full_like(weights, NEVER))
        return {"scores": scores, "types": self.types}


@dataclass(frozen=True)
class Conditional(Router):
    """Route by the log-odds of a departure given the query's earlier failures.

    It assumes that each prompt has one of G types, and that answers to a prompt of type g are
    independent and satisfy with probability q[g, n]. A failure of one server then tells which
    types are likely, and so which server is next. Types are clusters (k-means) of the offline rows
    of departure probabilities. The prior of a prompt's type is an average over offline prompts,
    weighted by softmax(cosine / temperature), mixed with the type's share of all offline prompts.

    Attributes:
        temperature: of the softmax, above 0.
        floor: weight of the type's share in the prior, in (0, 1].
        num_types: the most types G.
    """

    temperature: float = 0.1
    floor: float = 0.1
    num_types: int = 400

    on_departures = True

    def __post_init__(self) -> None:
        """Check the settings."""
        if not (self.temperature > 0 and 0 < self.floor <= 1 and self.num_types >= 1):
            raise ValueError(f"{self} needs temperature > 0, floor in (0, 1] and num_types >= 1.")

    def fit(self, split: OfflineSplit, *, rho: float, seed: int) -> FittedTypes:
        """Cluster the departures of the split.

        Raises:
            ValueError: If departures are not known.
        """
        split = split.sort_rows()
        departure = split.departure
        if departure is None:
            raise ValueError("the offline split has no departure probabilities to learn from.")
        model = cluster(departure, self.num_types, seed)
        types = np.full((self.num_types, departure.shape[1]), 0.5)
        types[: len(model.cluster_centers_)] = model.cluster_centers_.clip(UNSURE, 1 - UNSURE)
        members = np.eye(self.num_types)[model.labels_]
        return FittedTypes(split.embeddings, members, types, self.temperature, self.floor)
