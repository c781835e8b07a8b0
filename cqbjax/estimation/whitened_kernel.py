"""A GPU kernel for several products with the whitened tables of the offered servers in one pass.

With many dimensions a round mainly reads and writes the tables S [I, d] of the K offered servers.
XLA makes one pass for each product with a table, and a copy of each table that it gathers. The
kernel loads each tile of a table once, in place, and does all that the rows of the tile allow: it
changes them and writes them back, takes S y, takes S'v, or takes S'b with the curvature b of the
same rows. One program handles some rows of one run. `newton_cg` explains the products.
"""

import functools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from cqbjax.core import platforms

# Numbers in the tiles that a program holds at a time, and how many times it loads tiles.
TILE = 32 * 512
TILES = 4
WARPS = 8


class TablePass(NamedTuple):
    """What a pass does with each row of the K tables, in this order; it skips what is None.

    Attributes:
        along: [K, I] column factor of the change S <- S - along row', written in place.
        row: [K, d] row factor of this change.
        push: [K, d] y, for S y.
        weight: [K, K, I] w, for b_j = sum_k w_jk S_k y_k - n_j S_j y_j.
        times: [K, I] n, for the same b_j.
        pull: [K, I] v, for S'v.
        pulls_curved: whether to take S'b.
    """

    along: Array | None = None
    row: Array | None = None
    push: Array | None = None
    weight: Array | None = None
    times: Array | None = None
    pull: Array | None = None
    pulls_curved: bool = False

    @property
    def arrays(self) -> dict[str, Array]:
        """Its arrays by name."""
        named = self._asdict().items()
        return {name: value for name, value in named if isinstance(value, Array)}


class PassResult(NamedTuple):
    """The result of a pass.

    Attributes:
        table: [N, I, d] all tables.
        pushed: [K, I] S y, or None.
        bend: [] sum of S y times b, or None.
        pulled: [K, d] S'v or S'b, or None.
    """

    table: Array
    pushed: Array | None
    bend: Array | None
    pulled: Array | None


def is_available() -> bool:
    """Return whether passes run as Pallas kernels: on CUDA, if they compile and are right there."""
    platform = platforms.get_current()
    if not platform.kernels or platform.interpret or jax.default_backend() == "cpu":
        return platform.kernels
    return _works_here()


@functools.cache
def _works_here() -> bool:
    """Compile and run two passes on this GPU; warn once if they fail."""
    table = np.arange(96, dtype=np.float32).reshape(2, 8, 6) / 96
    servers, y, v = np.array([1], np.int32), table[:1, 0], table[:1, :, 0]

    def run(table: Array, servers: Array, y: Array, v: Array) -> tuple[Any, Any, Any]:
        first = run_pass(table, servers, TablePass(along=v, row=y, pull=v))
        return first.pulled, *run_pass(first.table, servers, TablePass(push=y))[:2]

    changed = table.copy()
    changed[1] -= np.outer(v[0], y[0])
    expected = v @ changed[1], changed, y @ changed[1].T
    try:
        # Compiled ahead: this may be called while another program is traced.
        results = jax.jit(run).lower(table, servers, y, v).compile()(table, servers, y, v)
        pairs = zip(results, expected, strict=True)
        if all(np.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in pairs):
            return True
        reason = "their results are wrong"
    except Exception as error:  # of Pallas, Triton or XLA
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
    warnings.warn(
        f"Pallas kernels do not work on this GPU ({reason}): plain XLA is used. "
        f"{platforms.SETTING}=0 switches them off.",
        stacklevel=2,
    )
    return False


def run_pass(table: Array, servers: Array, job: TablePass) -> PassResult:
    """Go once over the tables of the offered servers.

    Args:
        table: [N, I, d] whitened tables of all servers.
        servers: [K] int32, distinct.
        job: what to do.
    """
    from jax.experimental import pallas as pl  # a CPU does not load it
    from jax.experimental.pallas import triton

    size, (_, rows, dim) = len(servers), table.shape
    wide = pl.next_power_of_2(dim)
    high = max(1, min(TILE // (wide * pl.next_power_of_2(size)), pl.next_power_of_2(rows)))
    blocks = -(-rows // (high * TILES))
    changes, pulls = job.along is not None, job.pull is not None or job.pulls_curved
    shapes: dict[str, tuple[int, ...]] = {}
    if changes:
        shapes["table"] = table.shape
    if job.push is not None:
        shapes["pushed"] = size, rows
    if job.weight is not None:
        shapes["bend"] = (blocks,)
    if pulls:
        shapes["pulled"] = blocks, size, dim
    inputs = job.arrays
    kernel = functools.partial(
        _kernel, tuple(inputs), tuple(shapes), (size, rows, dim), (high, wide)
    )
    vectors = sum(array.size for array in inputs.values())
    vectors += size * rows * (job.push is not None) + size * dim * pulls
    numbers = (1 + changes) * size * table[0].size + vectors
    written = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(shape, table.dtype) for shape in shapes.values()],
        grid=(blocks,),
        input_output_aliases={1: 0} if changes else {},
        compiler_params=triton.CompilerParams(num_warps=WARPS),
        interpret=platforms.get_current().interpret,
        name="image_pass",
        # The compiler sees that the tables are inputs, not how few of their rows a program reads.
        metadata={"bytes_a_program": str(int(numbers * table.dtype.itemsize) // blocks)},
    )(servers, table, *inputs.values())
    results = dict(zip(shapes, written, strict=True))

    def total(name: str) -> Array | None:
        return jnp.sum(results[name], axis=0) if name in results else None

    return PassResult(
        results.get("table", table), results.get("pushed"), total("bend"), total("pulled")
    )  # fmt: skip


def _kernel(
    inputs: tuple[str, ...], outputs: tuple[str, ...], sizes: tuple[int, int, int],
    tile: tuple[int, int], servers: Any, table: Any, *refs: Any,
) -> None:  # fmt: skip
    """Do a pass with `TILES` tiles of rows of one run, one after another."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (size, rows, dim), (high, wide) = sizes, tile
    ref = dict(zip(inputs, refs, strict=False))
    out = dict(zip(outputs, refs[len(inputs) :], strict=True))
    source = out.get("table", table)
    columns = jnp.arange(wide) < dim
    zero: Any = np.int32(0)
    block, whole = pl.program_id(0), pl.ds(zero, wide)
    offered = [np.int32(k) for k in range(size)]  # an index of a reference has a shape

    def vectors(name: str) -> list[Array]:
        at = [ref[name].at[k, whole] for k in offered]
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
        for k in offered:
            place = source.at[servers[k], here, whole]
            numbers = triton.load(place, mask=mask, other=0.0)
            if changing:
                numbers = numbers - rows_of("along", k)[:, None] * changing[k][None]
                triton.store(place, numbers, mask=mask)
            tiles.append(numbers)
        pushed = [jnp.sum(t * y[None], axis=1) for t, y in zip(tiles, pushing, strict=False)]
        for k, numbers in zip(offered, pushed, strict=False):
            triton.store(out["pushed"].at[k, here], numbers, mask=inside)
        bend, *pulled = sums
        pulling = [rows_of("pull", k) for k in offered] if "pull" in ref else []
        if "weight" in ref:
            pulling = [
                sum(rows_of("weight", k, j) * pushed[j] for j in offered)
                - rows_of("times", k) * pushed[k]
                for k in offered
            ]
            bend += sum(jnp.sum(a * b) for a, b in zip(pushed, pulling, strict=True))
        both = zip(pulled, tiles, pulling, strict=False)
        return bend, *(s + jnp.sum(t * v[:, None], axis=0) for s, t, v in both)

    zeros = (jnp.zeros(wide, table.dtype),) * (size if "pulled" in out else 0)
    begun = jnp.zeros((), table.dtype), *zeros
    bend, *pulled = jax.lax.fori_loop(zero, np.int32(TILES), one, begun)
    if "bend" in out:
        triton.store(out["bend"].at[block], bend)
    for k, numbers in zip(offered, pulled, strict=False):
        triton.store(out["pulled"].at[block, k, whole], numbers, mask=columns)
