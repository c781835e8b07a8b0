"""What policies share when they pick, beside plain words."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cqbjax.core.types import Problem
from cqbjax.policies.picking import instead
from cqbjax.testing.compiling import QUICKLY
from cqbjax.testing.reference.policies import instead as plainly


@pytest.mark.parametrize("size", [1, 2])
def test_the_next_servers_that_answer_stand_in_for_those_that_do_not(size):
    problem = Problem(4, size, 2, 5, 9, "disjoint", True)
    pairs = list(itertools.product(
        itertools.combinations(range(4), size), itertools.product([True, False], repeat=4)
    ))  # fmt: skip
    servers, there = (np.asarray(one) for one in zip(*pairs, strict=True))

    def one(servers, there):
        return instead(servers, SimpleNamespace(problem=problem, available=there))

    together = jax.jit(jax.vmap(one), compiler_options=QUICKLY)
    made = together(jnp.asarray(servers, jnp.int32), jnp.asarray(there))
    wanted = [plainly(before, ~np.asarray(up)) for before, up in pairs]
    np.testing.assert_array_equal(made, wanted)
