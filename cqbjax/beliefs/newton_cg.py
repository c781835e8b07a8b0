"""Maximum likelihood over a table: exact gradient and preconditioned Newton steps, whitened.

The likelihood needs each (server, table row) pair only through two numbers, the residual and the
curvature summed over the rounds that served it. In the coordinates phi = W^-1 theta, W W' = V^-1,
everything is a product with the image S = X W of a shown server, since W' V W = I gives

    W' gradient = phi + S' (residual - n S phi),
    W' H_jk W = 1{j = k} (I - S_j' n_j S_j) + S_j' w_jk S_k,

with n how often the server was shown for each row: X and W themselves are not needed, and plain
conjugate gradients here are conjugate gradients preconditioned with V^-1 there. Warm-started from
the last estimate.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from cqbjax import linalg, mnl
from cqbjax.beliefs import image_passes
from cqbjax.beliefs import rows as past
from cqbjax.beliefs.image_passes import Job
from cqbjax.beliefs.rows import History, Row
from cqbjax.types import Problem

# Newton steps a round after the one along the new row, and conjugate-gradient steps in each beyond
# one for every shown server; what they leave is measured in docs/notebook/estimator.md. A pool
# of prompts has contexts of unit length, by which one row changes little; others are longer.
# Those of a policy's own lie closer to a line: a constant, or what a head adds, is in all of them.
POOL_STEPS = (1, 1)
VIEWED_STEPS = (1, 2)
OTHER_STEPS = (3, 5)
# Steps at most to the end of a system: in exact arithmetic it has been reached after K d.
EXACT_CG_STEPS = 64


class Record(NamedTuple):
    """The history as the likelihood needs it.

    Attributes:
        shown: [N, I] float, how often the server was shown for the table row.
        accepted: [N, I] float, how often its answer was chosen.
        company: who was shown beside it. K = 1: nothing; K = 2: [N, N, I] float, how often the two
            were shown for the row; K > 2: every round in turn.
    """

    shown: Array
    accepted: Array
    company: Array | History | None


class Image(NamedTuple):
    """A server's image S = X W as the round leaves it: stale - along row'.

    The change is kept apart: written first, it would cost two more passes over the image.

    Attributes:
        stale: [I, d] the image before the round.
        along: [I] how far each row moves
        row: [d] against this one.
    """

    stale: Array
    along: Array
    row: Array

    def push(self, y: Array) -> Array:
        """Return S y: [d] -> [I]."""
        return self.stale @ y - self.along * jnp.sum(self.row * y)

    def pull(self, v: Array) -> Array:
        """Return S' v: [I] -> [d]."""
        return v @ self.stale - jnp.sum(self.along * v) * self.row


class Apart(NamedTuple):
    """The shown servers' images as a CPU takes them: copies, each product a pass.

    Attributes:
        images: K of them.
    """

    images: tuple[Image, ...]

    def push(self, y: Array) -> Array:
        """Return S_k y_k: [K, d] -> [K, I]."""
        return jnp.stack([image.push(one) for image, one in zip(self.images, y, strict=True)])

    def pull(self, v: Array) -> tuple[Array, "Apart"]:
        """Return S_k' v_k, [K, I] -> [K, d], and the images to go on with."""
        return self._pull(v), self

    def bend(
        self, y: Array, weight: Array, count: Array, last: bool
    ) -> tuple[Array, Array, Array | None]:
        """Return a = S y [K, I], a'b [] with b the `curved` a, and unless `last` S'b [K, d]."""
        along = self.push(y)
        bent = curved(along, weight, count)
        return along, jnp.sum(along * bent), None if last else self._pull(bent)

    def written(self) -> "Apart":
        """Return the images to go on with where nothing is pulled first."""
        return self

    def _pull(self, v: Array) -> Array:
        return jnp.stack([image.pull(one) for image, one in zip(self.images, v, strict=True)])


class InPlace(NamedTuple):
    """The shown servers' images as a GPU takes them: where they lie, several products a pass.

    Attributes:
        image: [N, I, d] of all servers.
        servers: [K] int32.
        change: along [K, I] and row [K, d], S <- S - along row', while it is not written; the first
            pull writes it.
    """

    image: Array
    servers: Array
    change: tuple[Array, Array] | None = None

    def push(self, y: Array) -> Array:
        """Return S_k y_k: [K, d] -> [K, I]."""
        assert self.change is None, "the change is to be written first"
        pushed = image_passes.run(self.image, self.servers, Job(push=y)).pushed
        assert pushed is not None
        return pushed

    def pull(self, v: Array) -> tuple[Array, "InPlace"]:
        """Return S_k' v_k, [K, I] -> [K, d], and the images to go on with."""
        along, row = self.change or (None, None)
        done = image_passes.run(self.image, self.servers, Job(along, row, pull=v))
        assert done.pulled is not None
        return done.pulled, InPlace(done.image, self.servers)

    def bend(
        self, y: Array, weight: Array, count: Array, last: bool
    ) -> tuple[Array, Array, Array | None]:
        """Return a = S y [K, I], a'b [] with b the `curved` a, and unless `last` S'b [K, d]."""
        assert self.change is None, "the change is to be written first"
        job = Job(push=y, weight=weight, times=count, pulls_curved=not last)
        done = image_passes.run(self.image, self.servers, job)
        assert done.pushed is not None and done.bend is not None
        return done.pushed, done.bend, done.pulled

    def written(self) -> "InPlace":
        """Return the images to go on with where nothing is pulled first."""
        if self.change is None:
            return self
        done = image_passes.run(self.image, self.servers, Job(*self.change))
        return InPlace(done.image, self.servers)


Images = Apart | InPlace


class Shown(NamedTuple):
    """The K servers of the round's assortment.

    Attributes:
        images: of the K, the round absorbed.
        phi: [K, d] estimates in whitened coordinates.
        scores: [K, I] their utilities of the whole table.
        offset: [K, I] what of the utilities is no X theta; None is none.
    """

    images: Images
    phi: Array
    scores: Array
    offset: Array | None

    @property
    def moved(self) -> Array:
        """Return S phi, the utilities less the offset: [K, I]."""
        return self.scores if self.offset is None else self.scores - self.offset


class Direction(NamedTuple):
    """A direction for each of the K shown servers.

    Attributes:
        phi: [K, d] in whitened coordinates.
        scores: [K, I] what a unit step along it does to the scores, S phi.
    """

    phi: Array
    scores: Array


def init(problem: Problem) -> Record:
    """Return the record of no round."""
    servers, rows = problem.num_servers, problem.num_rows
    zeros = jnp.zeros((servers, rows))
    if problem.assortment_size == 1:
        return Record(zeros, zeros, None)
    if problem.assortment_size == 2:
        return Record(zeros, zeros, jnp.zeros((servers, servers, rows)))
    return Record(zeros, zeros, past.init(problem))


def append(record: Record, new: Row) -> Record:
    """Record a round."""
    shown, accepted, company = record
    size = len(new.servers)
    one = jnp.where(new.valid, 1.0, 0.0).astype(shown.dtype)
    for server in new.servers:
        shown = shown.at[server, new.row].add(one)
    chosen = new.servers[jnp.minimum(new.choice, size - 1)]
    accepted = accepted.at[chosen, new.row].add(jnp.where(new.choice < size, one, 0.0))
    if isinstance(company, History):
        company = past.append(company, new)
    elif company is not None:
        first, second = new.servers
        company = company.at[first, second, new.row].add(one).at[second, first, new.row].add(one)
    return Record(shown, accepted, company)


def update(
    shown: Shown,
    newest: Direction,
    scores: Array,
    record: Record,
    problem: Problem,
    new: Row,
    exact_steps: int = 0,
) -> Shown:
    """Move the shown servers' estimates by Newton steps on the exact likelihood.

    Args:
        shown: the shown servers, the round already in their images.
        newest: w = W'x of the round's row, along which the new likelihood term bends; S w is known,
            so that the first step, along w, costs no product with an image.
        scores: [N, I] utilities of the whole table, before the round.
        record: the history, the round included.
        problem: shapes; parameters must be disjoint.
        new: the round's row.
        exact_steps: 0 for the steps that the constants above fix, n > 0 for n steps to the end.

    Returns:
        The shown servers with their new estimates.
    """
    steps, more = _steps(problem)
    iterations = problem.assortment_size + more
    if exact_steps:
        iterations = min(problem.assortment_size * problem.dim, EXACT_CG_STEPS)
    count = record.shown[new.servers]

    def sums(shown: Shown) -> tuple[Array, Array]:
        return _table_sums(shown.scores, scores, record, problem, new)

    def step(_: int, shown: Shown) -> Shown:
        residual, weight = sums(shown)
        pulled, images = shown.images.pull(residual - count * shown.moved)
        slope = shown.phi + pulled
        move, along = conjugate_gradient(images, weight, count, -slope, iterations)
        return shown._replace(images=images, phi=shown.phi + move, scores=shown.scores + along)

    shown = _step_along(shown, newest, count, *sums(shown))
    if exact_steps:
        begun = shown._replace(images=shown.images.written())
        return jax.lax.fori_loop(0, exact_steps, step, begun)
    for _ in range(steps):
        shown = step(0, shown)
    return shown


def _steps(problem: Problem) -> tuple[int, int]:
    """Return Newton steps a round, and conjugate-gradient steps in each beyond K."""
    if not problem.pooled:
        return OTHER_STEPS
    return VIEWED_STEPS if problem.viewed else POOL_STEPS


def _step_along(
    shown: Shown, newest: Direction, count: Array, residual: Array, weight: Array
) -> Shown:
    """Take the Newton step of the K step lengths along given directions."""
    v = newest.scores
    slope = jnp.sum(shown.phi * newest.phi, axis=1)
    slope += jnp.sum((residual - count * shown.moved) * v, axis=1)
    own = jnp.sum(newest.phi**2, axis=1) - jnp.sum(count * v**2, axis=1)
    bend = jnp.diag(own) + jnp.einsum("jki,ji,ki->jk", weight, v, v)
    lengths = -linalg.solve_positive(bend, slope)[:, None]
    return shown._replace(phi=shown.phi + lengths * newest.phi, scores=shown.scores + lengths * v)


def curved(along: Array, weight: Array, count: Array) -> Array:
    """Return sum_k w_jk a_k - n_j a_j of products a = S y: [K, I], [K, K, I], [K, I] -> [K, I]."""
    return jnp.sum(weight * along, axis=1) - count * along


def conjugate_gradient(
    images: Images, weight: Array, count: Array, target: Array, iterations: int
) -> tuple[Array, Array]:
    """Solve for a joint step of the K shown blocks by conjugate gradients.

    S y comes for nothing with the curvature along each direction, so the caller's scores follow
    the step without another product, and the last iteration needs no product with S'.

    Args:
        images: of the K servers, S.
        weight: [K, K, I] w.
        count: [K, I] n.
        target: [K, d].
        iterations: a fixed number; a solved system stays where it is.

    Returns:
        y [K, d] and S y [K, I].
    """

    def ratio(above: Array, below: Array) -> Array:
        return jnp.where(below > 0, above / jnp.where(below > 0, below, 1.0), 0.0)

    step, moved = jnp.zeros_like(target), jnp.zeros_like(count)
    left = direction = target
    size = jnp.sum(left**2)
    for i in range(iterations):
        along, bend, pulled = images.bend(direction, weight, count, last=i + 1 == iterations)
        length = ratio(size, jnp.sum(direction**2) + bend)
        step, moved = step + length * direction, moved + length * along
        if pulled is None:
            break
        left = left - length * (direction + pulled)
        new_size = jnp.sum(left**2)
        direction = left + ratio(new_size, size) * direction
        size = new_size
    return step, moved


def _table_sums(
    own: Array, scores: Array, record: Record, problem: Problem, new: Row
) -> tuple[Array, Array]:
    """Sum residual and curvature of the shown servers over each table row's rounds.

    Returns:
        residual [K, I], the sum of p_j - y_j, and curvature [K, K, I], the sum of the entries of
        diag(p) - p p' between the shown servers.
    """
    shown, accepted = record.shown[new.servers], record.accepted[new.servers]
    if record.company is None:
        p = jax.nn.sigmoid(own)
        return shown * p - accepted, (shown * p * (1.0 - p))[None]
    scores = scores.at[new.servers].set(own)
    if isinstance(record.company, History):
        mass, curvature = _history_sums(record.company, scores, problem, new)
    else:
        mass, curvature = _pair_sums(record.company[new.servers], scores, own, new.servers)
    return mass - accepted, curvature


def _pair_sums(together: Array, scores: Array, own: Array, servers: Array) -> tuple[Array, Array]:
    """Sum p and curvature of the two shown servers over all their pairs, the whole table at once.

    Args:
        together: [2, N, I] how often each was shown with each other server.
        scores: [N, I] utilities.
        own: [2, I] those of the two.
        servers: [2] int32.

    Returns:
        [2, I] and [2, 2, I].
    """
    # An infinite exponential is a probability of zero.
    rivals = jnp.exp(scores - own[:, None])
    p = 1.0 / (1.0 + jnp.exp(-own)[:, None] + rivals)
    mass = jnp.sum(together * p, axis=1)
    diagonal = jnp.sum(together * p * (1.0 - p), axis=1)
    first, second = servers
    cross = -together[0, second] * p[0, second] * p[1, first]
    return mass, jnp.stack([jnp.stack([diagonal[0], cross]), jnp.stack([cross, diagonal[1]])])


def _history_sums(
    history: History, scores: Array, problem: Problem, new: Row
) -> tuple[Array, Array]:
    """Walk the history in blocks and scatter each row's p and curvature to its table row.

    Returns:
        [K, I] and [K, K, I].
    """
    size, table_rows = problem.assortment_size, problem.num_rows

    def add(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        rows = past.block(history, number)
        utilities = scores[rows.servers, rows.row[:, None]]
        p = mnl.choice_probabilities(utilities)
        match = rows.servers[None] == new.servers[:, None, None]
        match &= (rows.choice >= 0)[:, None]
        own = jnp.sum(jnp.where(match, p, 0.0), axis=-1)  # [K, L], p of each shown server
        curvature = jnp.eye(size)[:, :, None] * own - own[:, None] * own[None, :]
        return sums[0].at[:, rows.row].add(own), sums[1].at[:, :, rows.row].add(curvature)

    zeros = jnp.zeros((size, table_rows)), jnp.zeros((size, size, table_rows))
    return jax.lax.fori_loop(0, past.blocks_until(new.round), add, zeros)
