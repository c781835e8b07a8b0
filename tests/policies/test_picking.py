"""What policies share when they pick, beside plain words."""

import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tiers import cases

from cqbjax.core import rng
from cqbjax.core.types import Problem, Queue
from cqbjax.policies.assortments import (
    choose_query_and_servers,
    draw_assortment,
    draw_server_priorities,
    replace_unavailable,
)
from cqbjax.testing.instances import FAST_COMPILE_OPTIONS
from tests.reference.policies import replace_down as plainly


@pytest.mark.parametrize("size", [1, 2])
def test_assortments_with_an_unavailable_server_are_replaced(size):
    problem = Problem(4, size, 2, 5, 9, "disjoint", True)
    pairs = list(itertools.product(
        itertools.combinations(range(4), size), itertools.product([True, False], repeat=4)
    ))  # fmt: skip
    servers, there = (np.asarray(one) for one in zip(*pairs, strict=True))

    key = rng.round_key(rng.run_key(4), 7)

    def one(servers, there):
        return replace_unavailable(key, servers, SimpleNamespace(problem=problem, available=there))

    together = jax.jit(jax.vmap(one), compiler_options=FAST_COMPILE_OPTIONS)
    made = together(jnp.asarray(servers, jnp.int32), jnp.asarray(there))
    uniforms = np.asarray(draw_server_priorities(key, problem, rng.Stream.REPLACEMENT))
    wanted = [plainly(before, ~np.asarray(up), uniforms) for before, up in pairs]
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize(
    ("retry", "few"), [("same", None), ("fallback", None), ("same", 1), ("fallback", 1)]
)
def test_best_choice_matches_exhaustive_search(retry, few):
    """Who is down comes last, then who was shown more often, then who is worse."""
    problem, draw = Problem(4, 2, 2, 5, 9, "disjoint", True), np.random.default_rng(7)
    utilities = draw.normal(size=(60, 3, 4)).astype(np.float32)
    shown, there = draw.integers(3, size=(60, 3, 4)), draw.random((60, 4)) < 0.6
    arrived = draw.permuted(np.tile([0, 2, 5], (60, 1)), axis=1)  # one of the slots is free

    def one(utilities, shown, there, arrived):
        queue = Queue(arrived, arrived, arrived, shown)
        seen = SimpleNamespace(problem=problem, available=there, queue=queue)
        return choose_query_and_servers("joint", seen, utilities, jnp.zeros(()), retry, few=few)

    together = jax.jit(jax.vmap(one), compiler_options=FAST_COMPILE_OPTIONS)
    arguments = utilities, shown.astype(np.int32), there, arrived.astype(np.int32)
    slots, picks = together(*arguments)
    for case, (own, counts, up, came) in enumerate(
        zip(utilities, shown, there, arrived, strict=True)
    ):
        best = []
        for slot in np.flatnonzero(came):
            often = counts[slot] if retry == "fallback" else np.zeros(4)
            order = sorted(range(4), key=lambda j: (not up[j], often[j], -own[slot, j]))
            score = sum(np.exp(own[slot, j]) for j in order[: few or 2] if up[j])
            best.append((-score, slot, order[:2]))
        score, slot, servers = min(best)
        alone = len([one for one in best if one[0] == score]) == 1
        assert not alone or int(slots[case]) == slot
        # Of several that are down any may fill the place.
        chosen = {int(pick[case]) for pick in picks}
        wanted = {j for j in servers if up[j]}
        assert not alone or (wanted <= chosen and len(chosen) == 2)


@pytest.mark.parametrize("size", cases([1, 2, 3], [2]))
def test_random_assortments_are_uniform_over_available_ones(size):
    """With one server of five down; the fault to see is that the next server takes its share."""
    problem, rounds = Problem(5, size, 2, 5, 9, "disjoint", True), 20_000
    there = jnp.array([True, True, False, True, True])

    def one(round_):
        seen = SimpleNamespace(problem=problem, available=there)
        return draw_assortment(rng.round_key(rng.run_key(1), round_), seen)

    made = np.asarray(
        jax.jit(jax.vmap(one), compiler_options=FAST_COMPILE_OPTIONS)(jnp.arange(rounds))
    )
    ways = list(itertools.combinations((0, 1, 3, 4), size))
    counts = [(made == np.array(way)).all(axis=1).sum() for way in ways]
    assert sum(counts) == rounds
    assert stats.chisquare(counts).pvalue > 1e-3
