"""The probability that a query departs after an attempt, by LLM and context, with its uncertainty.

Of the requests i whose retry would be in the log, y_i = 1 if none came. With contexts x_i, which
begin with a constant, and the LLM j(i),

    P(y_i = 1) = sigmoid(x_i' beta_j(i)),    beta_je = mu_e + delta_je,

where mu_e ~ N(0, s_e^2) is shared and delta_je ~ N(0, tau_e^2) is the LLM's: partial pooling. The
fit estimates s_e and tau_e of each feature by expectation maximisation. The posterior is the
Gaussian that is nearest in Kullback-Leibler divergence, with v_i the variance of x_i' beta_j(i):
its mean solves sum_i x_i (y_i - E sigmoid) = prior precision times mean, where E sigmoid is
sigmoid(x_i' beta_j(i) / sqrt(1 + pi v_i / 8)). At the mode in its place (Laplace), departures that
are frequent would be too rare on average. Its covariance is widened by the design effect of users,
whose requests are not independent.

Off-policy estimates check the fit. For each LLM j, the value V_j = mean over attempts of
P(departs | prompt, j) is estimated by the model, by inverse propensities (IPS), self-normalised
(SNIPS), and doubly robust (DR):

    V_j^DR = mean( q_j(x) + 1{a = j} (y - q_j(x)) / e_j(x) ).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
import scipy.linalg
import scipy.sparse
from scipy.special import expit, softmax

from cqbjax.log_analysis.requests import RequestLog

COMPONENTS = 32  # of words or embeddings
COMMON, FEWEST_PROMPTS = 0.01, 5  # share and number of prompts with a word that counts
FOLDS, MOST_ROWS = 4, 40_000  # of the cross-validation
LEAST_WEIGHT = 0.05  # of a fit; those below it are left out
# Standard deviations s and tau of the log-odds: of the constant, and those from which the fit
# estimates the features' ones, which are cross-validated.
CONSTANT = (3.0, 1.0)
SCALES = ((0.1, 0.1), (0.4, 0.3), (1.0, 1.0))
# Steps of the estimation. In LLMs, the weight of the scale in the mean variance of all features,
# and the weight of this mean in the variance of each.
STEPS, SCALE_WEIGHT, MEAN_WEIGHT = 8, 2.0, 0.3
CLUSTERS = 8  # kinds of prompt
RARE = 0.01  # share of an LLM's attempts with a kind of prompt: if less, it is not compared there
SMALL = 1e-3  # the least propensity in a weight
DISAGREE = 3.0  # standard errors


class Attempts(NamedTuple):
    """Attempts whose outcome is in the log.

    Attributes:
        text: [n] prompt, -1 if unknown.
        model: [n] LLM.
        departs: [n] 1.0 if no retry came, else 0.0.
        group: [n] user, or the query where there is none.
    """

    text: np.ndarray
    model: np.ndarray
    departs: np.ndarray
    group: np.ndarray


class DepartureFit(NamedTuple):
    """Posterior of the coefficients.

    Attributes:
        mean: [N, E].
        root: [N E, N E], a root of the covariance.
        design_effect: by how much users widen the covariance.
    """

    mean: np.ndarray
    root: np.ndarray
    design_effect: float

    def draw(self, key: np.random.Generator, number: int) -> np.ndarray:
        """Draw coefficients: [number, N, E]."""
        noise = key.standard_normal((number, self.mean.size)) @ self.root.T
        return self.mean + noise.reshape(number, *self.mean.shape)


class ChosenContexts(NamedTuple):
    """Contexts that predict departures best, and fits with several scales of the prior.

    Attributes:
        name: `none`, `statistics`, `words` or `embeddings`.
        contexts: [texts + 1, E], a constant first; the last row is that of an unknown prompt.
        fits: on all attempts, one for each scale.
        weights: of the fits, by the cross-validated likelihood of their scales.
        gains: name -> gain in log-likelihood an attempt over `none`, and its standard error.
    """

    name: str
    contexts: np.ndarray
    fits: Sequence[DepartureFit]
    weights: np.ndarray
    gains: Mapping[str, tuple[float, float]]

    def draw(self, key: np.random.Generator, number: int) -> np.ndarray:
        """Draw coefficients of all fits: [number, N, E]."""
        counts = key.multinomial(number, self.weights)
        every = [fit.draw(key, count) for fit, count in zip(self.fits, counts, strict=True)]
        return np.concatenate(every)[key.permutation(number)]


def make_contexts(log: RequestLog) -> dict[str, np.ndarray]:
    """Return the candidates for contexts, smallest first: name -> [texts + 1, E]."""
    from sklearn.decomposition import TruncatedSVD

    texts = log.words.shape[0]
    raw: dict[str, np.ndarray] = {"none": np.empty((texts, 0))}
    if texts > 1 and (log.frame["text"] >= 0).any():
        size = min(COMPONENTS, texts - 1)
        raw["statistics"] = log.statistics
        # Which of the frequent words occur: a rare word says little, and hides the others.
        frequent = log.words.getnnz(axis=0) >= max(FEWEST_PROMPTS, COMMON * texts)
        occurs = (log.words[:, frequent] > 0).toarray().astype(np.float32)
        occurs = (occurs - occurs.mean(axis=0)) / np.maximum(occurs.std(axis=0), 1e-6)
        if (size := min(size, occurs.shape[1] - 1)) > 0:
            raw["words"] = TruncatedSVD(size, random_state=0).fit_transform(occurs)
        if log.embeddings is not None:
            centred = log.embeddings - log.embeddings.mean(axis=0)
            size = min(COMPONENTS, texts - 1, centred.shape[1] - 1)
            raw["embeddings"] = TruncatedSVD(size, random_state=0).fit_transform(centred)
    contexts = {}
    for name, values in raw.items():
        deviation = values.std(axis=0)
        some, deviation = values[:, deviation > 1e-9], deviation[deviation > 1e-9]
        scaled = np.clip((some - some.mean(axis=0)) / deviation, -4, 4)
        # Components that vary more may matter more; statistics have units of their own.
        share = np.ones_like(deviation) if name == "statistics" else deviation
        scaled *= share / max(np.linalg.norm(share), 1e-12)
        scaled = np.concatenate([scaled, np.zeros((1, scaled.shape[1]))])
        contexts[name] = np.column_stack([np.ones(len(scaled)), scaled])
    return contexts


def standardize(contexts: np.ndarray) -> np.ndarray:
    """Return contexts with features of one standard deviation, as scikit-learn's penalties want."""
    deviation = contexts.std(axis=0)
    return contexts / np.where(deviation > 0, deviation, 1.0)


def choose_contexts(attempts: Attempts, candidates: Mapping[str, np.ndarray], number: int,
                    only: str | None = None) -> ChosenContexts:  # fmt: skip
    """Cross-validate contexts and scales of the prior by their log-likelihood, and fit the likely.

    Users are in one fold each. Contexts that help little still count: without them an LLM that
    got the hard prompts looks worse than it is.

    Args:
        attempts: to fit.
        candidates: from `make_contexts`.
        number: N.
        only: the name of the contexts to use; None: the best.
    """
    draw = np.random.default_rng(0)
    groups, index = np.unique(attempts.group, return_inverse=True)
    fold = draw.integers(FOLDS, size=len(groups))[index]
    if len(fold) > MOST_ROWS:
        fold[draw.permutation(len(fold))[MOST_ROWS:]] = -1  # not used
    scores: dict[str, list[np.ndarray]] = {name: [] for name in candidates}
    for name, contexts in candidates.items():
        for scale in SCALES[:1] if contexts.shape[1] == 1 else SCALES:
            scores[name].append(np.zeros(len(fold)))
            for held in range(FOLDS):
                train, test = (fold >= 0) & (fold != held), fold == held
                some = Attempts(*(part[train] for part in attempts))
                if test.any() and train.any():
                    fit = fit_departures(some, contexts, number, scale, with_root=False)
                    rest = Attempts(*(part[test] for part in attempts))
                    scores[name][-1][test] = log_likelihood(rest, contexts, fit.mean)
    best = {name: max(some, key=np.sum) for name, some in scores.items()}
    gains = {name: _compare(one - best["none"], index, fold >= 0) for name, one in best.items()}
    winner = only or max(best, key=lambda name: best[name].sum())
    if only is None and winner == "none" and len(best) > 1:
        # That contexts matter little is known only within an error, which a fit without them hides.
        other = max(set(best) - {"none"}, key=lambda name: best[name].sum())
        winner = other if sum(gains[other]) > -gains[other][1] else "none"
    weights = softmax([one.sum() for one in scores[winner]])
    likely = np.flatnonzero(weights >= LEAST_WEIGHT)
    weights = weights[likely] / weights[likely].sum()
    fits = [fit_departures(attempts, candidates[winner], number, SCALES[k]) for k in likely]
    return ChosenContexts(winner, candidates[winner], fits, weights, gains)


def _compare(gain: np.ndarray, index: np.ndarray, used: np.ndarray) -> tuple[float, float]:
    """Return the mean gain of an attempt, and its standard error by users."""
    total = max(int(used.sum()), 1)
    sums = np.bincount(index[used], gain[used])
    return float(sums.sum() / total), float(np.sqrt((sums**2).sum()) / total)


def log_likelihood(attempts: Attempts, contexts: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Return the log-likelihood of each attempt: [n]."""
    logits = np.einsum("ne,ne->n", contexts[attempts.text], mean[attempts.model])
    return -np.logaddexp(0, np.where(attempts.departs > 0, -logits, logits))


def fit_departures(
    attempts: Attempts, contexts: np.ndarray, number: int, scale: Sequence[float],
    with_root: bool = True,
) -> DepartureFit:  # fmt: skip
    """Fit the coefficients by Newton's method.

    Args:
        attempts: to fit.
        contexts: [texts + 1, E].
        number: N.
        scale: s and tau of the features.
        with_root: whether the covariance is wanted.
    """
    size = contexts.shape[1]
    order = np.argsort(attempts.model, kind="stable")
    text, model, departs, group = (part[order] for part in attempts)
    rows = contexts[text]
    ends = np.searchsorted(model, np.arange(number + 1))
    blocks = [slice(*pair) for pair in zip(ends[:-1], ends[1:], strict=True)]
    # Over LLMs, the prior's covariance of a feature has two eigenvalues: of the mean, and of the
    # N - 1 directions around it.
    laws = np.array([CONSTANT, *[scale] * (size - 1)]).T ** 2
    laws[0] = number * laws[0] + laws[1]
    begin, prior = laws.copy(), _make_precision(laws, number)

    def maximize(beta: np.ndarray, wide: np.ndarray, largest: float) -> tuple[np.ndarray, ...]:
        """Take Newton steps until none is above `largest`.

        Returns:
            Coefficients, scores, Hessian of the likelihood, and the posterior's covariance.
        """
        for _ in range(100):
            # The mean of sigmoid(l) is nearly sigmoid(E l / wide).
            chance = expit(np.einsum("ne,ne->n", rows, beta[model]) / wide)
            weighted = rows * (chance * (1 - chance) / wide)[:, None]
            score = rows * (departs - chance)[:, None]
            gradient = np.concatenate([score[block].sum(axis=0) for block in blocks])
            hessian = scipy.linalg.block_diag(*(weighted[b].T @ rows[b] for b in blocks))
            root = scipy.linalg.cho_factor(hessian + prior)
            step = scipy.linalg.cho_solve(root, gradient - prior @ beta.ravel())
            longest = np.abs(step).max()
            beta = beta + (step * min(1.0, 3.0 / max(longest, 1e-12))).reshape(beta.shape)
            if longest <= largest:
                break
        return beta, score, hessian, scipy.linalg.cho_solve(root, np.eye(len(prior)))

    beta, wide = np.zeros((number, size)), np.ones(len(rows))
    for _ in range(STEPS):
        beta, _, _, inverse = maximize(beta, wide, 1e-2)
        covariance = inverse.reshape(number, size, number, size)
        mean = (beta.sum(axis=0) ** 2 + np.einsum("neme->e", covariance)) / number
        total = (beta**2).sum(axis=0) + np.einsum("nene->e", covariance)
        moments, counts = np.array([mean, total - mean]), np.array([[1], [number - 1]])
        usual = SCALE_WEIGHT * begin[:, -1:] + moments[:, 1:].sum(axis=1, keepdims=True)
        usual /= SCALE_WEIGHT + counts * (size - 1)
        laws[:, 1:] = ((MEAN_WEIGHT * usual + moments) / (MEAN_WEIGHT + counts))[:, 1:]
        # LLMs around their mean: the shared constant is not the prior's to shrink.
        own = SCALE_WEIGHT * CONSTANT[1] ** 2 + moments[1, 0]
        laws[1, 0] = own / (SCALE_WEIGHT + number - 1)
        prior = _make_precision(laws, number)
    beta, _, _, inverse = maximize(beta, wide, 1e-6)
    if not with_root:
        return DepartureFit(beta, np.empty((0, 0)), 1.0)
    covariance = inverse.reshape(number, size, number, size)
    for j, block in enumerate(blocks):
        variance = np.einsum(
            "ne,ef,nf->n", rows[block], covariance[j, :, j], rows[block], optimize=True
        )
        wide[block] = np.sqrt(1 + np.pi / 8 * variance)
    beta, score, hessian, inverse = maximize(beta, wide, 1e-2)
    # Scores of each user, in the columns of the LLM.
    columns = (model[:, None] * size + np.arange(size)).ravel()
    users = np.unique(group, return_inverse=True)[1]
    by_user = scipy.sparse.csr_matrix(
        (score.ravel(), (np.repeat(users, size), columns)), (users.max() + 1, len(inverse))
    )
    spread = (by_user.T @ by_user).toarray()
    effect = max(1.0, float((inverse * spread).sum() / (inverse * hessian).sum()))
    return DepartureFit(beta, np.linalg.cholesky(effect * inverse), effect)


def _make_precision(laws: np.ndarray, number: int) -> np.ndarray:
    """Return the prior's precision [N E, N E] from its eigenvalues for each feature: [2, E]."""
    mean = np.full((number, number), 1 / number)
    blocks = np.array([mean / one + (np.eye(number) - mean) / own for one, own in laws.T])
    size = laws.shape[1]
    return np.einsum("enm,ef->nemf", blocks, np.eye(size)).reshape(number * size, -1)


class OutcomeLevel(NamedTuple):
    """At which level an LLM's answers fail, by how often another attempt of it succeeds.

    Attributes:
        level: `attempt`, `query` or `prompt`, as `Problem.outcome`.
        repeats: attempts of an LLM that had failed the same query.
        ratio: their departures, divided by those that independent attempts would have.
        other_ratio: the same of LLMs that had not failed the query, after another had.
    """

    level: str
    repeats: int
    ratio: float
    other_ratio: float


def find_outcome_level(
    query: np.ndarray, attempt: np.ndarray, attempts: Attempts, chance: np.ndarray
) -> OutcomeLevel:
    """Compare later attempts with independent ones.

    Args:
        query: [n] query of each attempt.
        attempt: [n] number of the attempt in its query, in order.
        attempts: LLMs, prompts and departures.
        chance: [n] fitted probabilities of departure.
    """
    order = np.lexsort((attempt, query, attempts.model))
    same = np.zeros(len(query), bool)
    same[order[1:]] = (np.diff(query[order]) == 0) & (np.diff(attempts.model[order]) == 0)
    later = attempt > 1
    good, ratios = attempts.departs, []
    for kind in (same, later & ~same):
        expected = chance[kind].sum()
        ratios.append(float(good[kind].sum() / expected) if expected else 1.0)
    error = 2 / np.sqrt(max(chance[same].sum(), 1.0))
    if not same.any() or ratios[0] + error > 0.5:
        return OutcomeLevel("attempt", int(same.sum()), *ratios)
    # Do different queries with one prompt fail at the same LLMs?
    first = ~later & (attempts.text >= 0)
    pair = attempts.text[first] * (attempts.model.max() + 1) + attempts.model[first]
    _, index, counts = np.unique(pair, return_inverse=True, return_counts=True)
    means = np.bincount(index, good[first]) / counts
    several = counts > 1
    within = (means * (1 - means))[several].mean() if several.any() else 1.0
    spread = (chance[first] * (1 - chance[first])).mean()
    level = "prompt" if several.sum() >= 30 and within < 0.1 * spread else "query"
    return OutcomeLevel(level, int(same.sum()), *ratios)


class Overlap(NamedTuple):
    """Overlap and checks.

    Attributes:
        propensities: [texts + 1, N] estimated probabilities of each LLM.
        supported: [texts + 1, N] whether an LLM is compared on a prompt: its share of the attempts
            with such prompts is at least `RARE`, both by kinds and by estimated propensities.
        table: a row for each LLM: values and errors, effective sample size.
    """

    propensities: np.ndarray
    supported: np.ndarray
    table: pl.DataFrame


def check_overlap(
    attempts: Attempts, contexts: np.ndarray, chances: np.ndarray, errors: np.ndarray,
    logged: np.ndarray | None, names: tuple[str, ...],
) -> Overlap:  # fmt: skip
    """Estimate propensities, and compare the model's departures with off-policy estimates.

    Args:
        attempts: n attempts.
        contexts: [texts + 1, E].
        chances: [texts + 1, N] fitted departure probabilities.
        errors: [N] standard error of the model's V_j.
        logged: [n] propensities of the chosen LLMs in the log, or None.
        names: [N] of LLMs.
    """
    from sklearn.cluster import KMeans
    from sklearn.linear_model import LogisticRegression

    number, text, contexts = len(names), attempts.text, standardize(contexts)
    propensities = np.ones((len(contexts), number))
    if len(np.unique(attempts.model)) > 1:
        law = LogisticRegression(max_iter=200).fit(contexts[text], attempts.model)
        propensities[:] = 0.0
        propensities[:, law.classes_] = law.predict_proba(contexts)
    cluster = np.zeros(len(contexts), int)
    if contexts.shape[1] > 1 and len(contexts) > CLUSTERS:
        cluster = KMeans(CLUSTERS, n_init=1, random_state=0).fit_predict(contexts)
    pairs = cluster[text] * number + attempts.model
    counts = np.bincount(pairs, minlength=number * (cluster.max() + 1)).reshape(-1, number)
    chosen = propensities[text, attempts.model] if logged is None else logged
    weight = 1 / np.maximum(chosen, SMALL)
    rows, chose = [], attempts.model[:, None] == np.arange(number)
    # Small propensities may be estimated too small: what happened there decides.
    low = propensities[text] < RARE
    rare = low.any(axis=0) & ((low & chose).sum(axis=0) < RARE * low.sum(axis=0))
    for j, name in enumerate(names):
        mine = chose[:, j]
        own, model = np.where(mine, weight, 0.0), chances[text, j]
        robust = model + own * (attempts.departs - model)
        value, error = _mean_by_user(robust, attempts.group)
        bias, bias_error = _mean_by_user(robust - model, attempts.group)
        rows.append({
            "LLM": name, "model": model.mean(), "model_error": errors[j], "DR": value,
            "DR_error": error, "bias": bias, "bias_error": bias_error,
            "IPS": (own * attempts.departs).mean(),
            "SNIPS": (own * attempts.departs).sum() / max(own.sum(), 1e-12),
            "effective": own.sum() ** 2 / max((own**2).sum(), 1e-12),
            "disagree": bool(abs(value - model.mean()) > DISAGREE * np.hypot(error, errors[j])),
        })  # fmt: skip
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    supported = (propensities >= RARE) | ~rare
    supported &= shares[cluster] >= RARE
    return Overlap(propensities, supported, pl.DataFrame(rows))


def estimate_bias(table: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the bias of the model's V_j that the doubly robust estimates show: [N].

    It is shrunk: biases b_j ~ N(0, t^2) are seen with their standard errors, and t^2 is what they
    vary more than these. Also return the standard error that remains: [N].
    """
    bias, error = (table[name].to_numpy() for name in ("bias", "bias_error"))
    spread = max(float((bias**2 - error**2).mean()), 0.0)
    share = spread / np.maximum(spread + error**2, 1e-12)
    return share * bias, np.sqrt(share) * error


def _mean_by_user(values: np.ndarray, group: np.ndarray) -> tuple[float, float]:
    """Return the mean of values, and its standard error by users."""
    index = np.unique(group, return_inverse=True)[1]
    centred = np.bincount(index, values - values.mean())
    return float(values.mean()), float(np.sqrt((centred**2).sum()) / len(values))
