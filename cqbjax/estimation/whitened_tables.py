"""The whitened tables S = X W of the offered servers, and the products that `newton_cg` takes.

A round changes each of them by the outer product of one row. A CPU works on copies (`CopiedTables`)
and takes one pass for each product. A GPU works in place (`TablesInPlace`) and takes several
products in one pass.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from cqbjax.estimation import whitened_kernel
from cqbjax.estimation.whitened_kernel import TablePass


class CopiedTables(NamedTuple):
    """The K tables of the offered servers on a CPU, as stale - along row': one pass a product.

    The change is not written first, because that would cost two more passes over a table.

    Attributes:
        stale: K copies of S [I, d] before the round.
        along: [K, I] column factor of the change.
        row: [K, d] row factor of the change.
    """

    stale: tuple[Array, ...]
    along: Array
    row: Array

    def push(self, y: Array) -> Array:
        """Return S_k y_k: [K, d] -> [K, I]."""
        each = zip(*self, y, strict=True)
        return jnp.stack([stale @ y - along * jnp.sum(row * y) for stale, along, row, y in each])

    def pull(self, v: Array) -> tuple[Array, "CopiedTables"]:
        """Return S_k' v_k, [K, I] -> [K, d], and the tables afterwards."""
        each = zip(*self, v, strict=True)
        pulled = [v @ stale - jnp.sum(along * v) * row for stale, along, row, v in each]
        return jnp.stack(pulled), self

    def bend(
        self, y: Array, weight: Array, count: Array, last: bool
    ) -> tuple[Array, Array, Array | None]:
        """Return a = S y [K, I], a'b [] with b = sum_k w_jk a_k - n_j a_j, and S'b [K, d].

        Args:
            y: [K, d].
            weight: [K, K, I] w.
            count: [K, I] n.
            last: whether S'b is left out.
        """
        along = self.push(y)
        bent = jnp.sum(weight * along, axis=1) - count * along
        return along, jnp.sum(along * bent), None if last else self.pull(bent)[0]

    def write(self) -> "CopiedTables":
        """Return the tables with their change written; here the caller writes it."""
        return self


class TablesInPlace(NamedTuple):
    """The tables of the offered servers on a GPU: changed in place, several products in one pass.

    Attributes:
        table: [N, I, d] whitened tables of all servers.
        servers: [K] int32.
        change: along [K, I] and row [K, d] of S <- S - along row', until the first pull writes it.
    """

    table: Array
    servers: Array
    change: tuple[Array, Array] | None = None

    def push(self, y: Array) -> Array:
        """Return S_k y_k: [K, d] -> [K, I]."""
        assert self.change is None, "the change must be written first"
        pushed = whitened_kernel.run_pass(self.table, self.servers, TablePass(push=y)).pushed
        assert pushed is not None
        return pushed

    def pull(self, v: Array) -> tuple[Array, "TablesInPlace"]:
        """Return S_k' v_k, [K, I] -> [K, d], and the tables afterwards."""
        along, row = self.change or (None, None)
        job = TablePass(along, row, pull=v)
        result = whitened_kernel.run_pass(self.table, self.servers, job)
        assert result.pulled is not None
        return result.pulled, TablesInPlace(result.table, self.servers)

    def bend(
        self, y: Array, weight: Array, count: Array, last: bool
    ) -> tuple[Array, Array, Array | None]:
        """Return what `CopiedTables.bend` returns."""
        assert self.change is None, "the change must be written first"
        job = TablePass(push=y, weight=weight, times=count, pulls_curved=not last)
        result = whitened_kernel.run_pass(self.table, self.servers, job)
        assert result.pushed is not None and result.bend is not None
        return result.pushed, result.bend, result.pulled

    def write(self) -> "TablesInPlace":
        """Return the tables with their change written."""
        if self.change is None:
            return self
        job = TablePass(*self.change)
        result = whitened_kernel.run_pass(self.table, self.servers, job)
        return TablesInPlace(result.table, self.servers)


WhitenedTables = CopiedTables | TablesInPlace
