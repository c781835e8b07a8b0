"""Products with images of shown servers, several in one pass, as a kernel for a GPU.

A round at many dimensions reads and writes images S [I, d] of the K shown servers; everything else
is small beside them. XLA makes a pass of every product with an image, and a copy of what it
gathers. Here a pass loads each tile of the images once, where they lie, and does with it all that
the tile's own rows allow: change it and write it back, push (S y), pull (S'v), or pull what was
pushed through the curvature of the same rows. A program takes some rows of one run.

`newton_cg` says what the products are for; on a CPU they are products of matrices there.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import platforms

# Numbers of all tiles that a program holds, and tiles that it takes one after another.
TILE = 32 * 512
TILES = 4
WARPS = 8


class Job(NamedTuple):
    """What a pass does with each row of the K images, in this order; None is left out.

    Attributes:
        along: [K, I] and
        row: [K, d], the change S <- S - along row', written in place.
        push: [K, d] y, for S y.
        weight: [K, K, I] and
        times: [K, I] n, for b_j = sum_k w_jk S_k y_k - n_j S_j y_j.
        pull: [K, I] v, for S'v.
        pulls_curved: whether b is pulled.
    """

    along: Array | None = None
    row: Array | None = None
    push: Array | None = None
    weight: Array | None = None
    times: Array | None = None
    pull: Array | None = None
    pulls_curved: bool = False

    @property
    def changes(self) -> bool:
        """Whether images are written."""
        return self.along is not None

    @property
    def pulls(self) -> bool:
        """Whether something is pulled."""
        return self.pull is not None or self.pulls_curved

    @property
    def arrays(self) -> dict[str, Array]:
        """Its arrays by name."""
        named = self._asdict().items()
        return {name: value for name, value in named if isinstance(value, Array)}


class Done(NamedTuple):
    """What came of a pass.

    Attributes:
        image: [N, I, d] all images.
        pushed: [K, I] S y, None where nothing was pushed.
        bend: [] sum of S y times b, None where there is no curvature.
        pulled: [K, d] what was pulled, None where nothing was.
    """

    image: Array
    pushed: Array | None
    bend: Array | None
    pulled: Array | None


def run(image: Array, servers: Array, job: Job) -> Done:
    """Go once over the images of the shown servers.

    Args:
        image: [N, I, d] of all servers.
        servers: [K] int32, distinct.
        job: what to do.
    """
    from jax.experimental import pallas as pl  # not waited for on a CPU
    from jax.experimental.pallas import triton

    size, (_, rows, dim) = len(servers), image.shape
    wide = pl.next_power_of_2(dim)
    high = max(1, min(TILE // (wide * pl.next_power_of_2(size)), pl.next_power_of_2(rows)))
    blocks = -(-rows // (high * TILES))
    outputs: dict[str, jax.ShapeDtypeStruct] = {}
    if job.changes:
        outputs["image"] = jax.ShapeDtypeStruct(image.shape, image.dtype)
    if job.push is not None:
        outputs["pushed"] = jax.ShapeDtypeStruct((size, rows), image.dtype)
    if job.weight is not None:
        outputs["bend"] = jax.ShapeDtypeStruct((blocks,), image.dtype)
    if job.pulls:
        outputs["pulled"] = jax.ShapeDtypeStruct((blocks, size, dim), image.dtype)
    given = job.arrays
    kernel = functools.partial(
        _kernel, tuple(given), tuple(outputs), (size, rows, dim), (high, wide)
    )
    written = pl.pallas_call(
        kernel,
        out_shape=list(outputs.values()),
        grid=(blocks,),
        input_output_aliases={1: 0} if job.changes else {},
        compiler_params=triton.CompilerParams(num_warps=WARPS),
        interpret=platforms.current().interpret,
        name="image_pass",
        # Of images the compiler sees that they are given, not how little of them is touched.
        metadata={"bytes_a_program": str(_bytes(image, size, job) // blocks)},
    )(servers, image, *given.values())
    results = dict(zip(outputs, written, strict=True))

    def total(name: str) -> Array | None:
        return jnp.sum(results[name], axis=0) if name in results else None

    return Done(
        results.get("image", image), results.get("pushed"), total("bend"), total("pulled")
    )  # fmt: skip


def _bytes(image: Array, size: int, job: Job) -> int:
    """Return the bytes that a pass reads and writes."""
    passes = 2 if job.changes else 1
    vectors = sum(array.size for array in job.arrays.values())
    vectors += size * image.shape[1] * (job.push is not None)
    vectors += size * image.shape[2] * job.pulls
    return int((passes * size * image[0].size + vectors) * image.dtype.itemsize)


def _kernel(
    given: tuple[str, ...], made: tuple[str, ...], sizes: tuple[int, int, int],
    tile: tuple[int, int], servers: Any, image: Any, *refs: Any,
) -> None:  # fmt: skip
    """Do a job with `TILES` tiles of rows of one run, one after another."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (size, rows, dim), (high, wide) = sizes, tile
    ref = dict(zip(given, refs, strict=False))
    out = dict(zip(made, refs[len(given) :], strict=True))
    source = out.get("image", image)
    columns = jnp.arange(wide) < dim
    zero: Any = np.int32(0)
    block, whole = pl.program_id(0), pl.ds(zero, wide)
    shown = [np.int32(k) for k in range(size)]  # an index of a reference has a shape

    def vectors(name: str) -> list[Array]:
        at = [ref[name].at[k, whole] for k in shown]
        return [triton.load(one, mask=columns, other=0.0) for one in at]

    pushing = vectors("push") if "push" in ref else []
    changing = vectors("row") if "row" in ref else []

    def one(number: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        first = (block * TILES + number) * high
        here, inside = pl.ds(first, high), first + jnp.arange(high) < rows

        def rows_of(name: str, *at: Any) -> Array:
            return triton.load(ref[name].at[*at, here], mask=inside, other=0.0)

        mask = inside[:, None] & columns[None]
        tiles = []
        for k in shown:
            place = source.at[servers[k], here, whole]
            numbers = triton.load(place, mask=mask, other=0.0)
            if changing:
                numbers = numbers - rows_of("along", k)[:, None] * changing[k][None]
                triton.store(place, numbers, mask=mask)
            tiles.append(numbers)
        pushed = [jnp.sum(t * y[None], axis=1) for t, y in zip(tiles, pushing, strict=False)]
        for k, numbers in zip(shown, pushed, strict=False):
            triton.store(out["pushed"].at[k, here], numbers, mask=inside)
        bend, *pulled = sums
        pulling = [rows_of("pull", k) for k in shown] if "pull" in ref else []
        if "weight" in ref:
            pulling = [
                sum(rows_of("weight", k, j) * pushed[j] for j in shown)
                - rows_of("times", k) * pushed[k]
                for k in shown
            ]
            bend += sum(jnp.sum(a * b) for a, b in zip(pushed, pulling, strict=True))
        both = zip(pulled, tiles, pulling, strict=False)
        return bend, *(s + jnp.sum(t * v[:, None], axis=0) for s, t, v in both)

    zeros = (jnp.zeros(wide, image.dtype),) * (size if "pulled" in out else 0)
    begun = jnp.zeros((), image.dtype), *zeros
    bend, *pulled = jax.lax.fori_loop(zero, np.int32(TILES), one, begun)
    if "bend" in out:
        triton.store(out["bend"].at[block], bend)
    for k, numbers in zip(shown, pulled, strict=False):
        triton.store(out["pulled"].at[block, k, whole], numbers, mask=columns)
