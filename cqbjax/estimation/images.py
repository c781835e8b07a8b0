"""The images S = X W of the shown servers, and the products that an estimator takes of them.

A round changes each of them by one row's outer product. A CPU takes copies of them (`Apart`), each
product a pass; a GPU takes them where they lie (`InPlace`), several products a pass.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.estimation import image_passes
from cqbjax.estimation.image_passes import Job


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


def curved(along: Array, weight: Array, count: Array) -> Array:
    """Return sum_k w_jk a_k - n_j a_j of products a = S y: [K, I], [K, K, I], [K, I] -> [K, I]."""
    return jnp.sum(weight * along, axis=1) - count * along
