"""What is written for a GPU computes what is written for a CPU, decision for decision."""

import dataclasses
import functools
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import cases

from cqbjax import sources
from cqbjax.core import backend, linalg, platforms, pytree, rng, simulate
from cqbjax.estimation import (
    likelihood,
    packed_matrices,
    paged_history,
    running_estimate,
    whitened_kernel,
)
from cqbjax.estimation.whitened_kernel import TablePass
from cqbjax.policies import Acqb

HORIZON, CAPACITY, SEEDS = 60, 40, (0, 1, 2)
# Kernels written for a GPU are carried out by JAX; without barriers a CPU's compiler takes minutes.
GPU = platforms.GPU._replace(interpret=True, barriers=True, slots=16)


def pool() -> sources.PromptPool:
    """Return a small routing table: 50 prompts in 6 dimensions, 4 servers."""
    draws = np.random.default_rng(5)
    contexts = draws.normal(size=(50, 6)) / np.sqrt(6)
    utilities = 1.5 * draws.normal(size=(50, 4)) - 0.4
    return sources.PromptPool(contexts=contexts, utilities=utilities, pool_size=40)


CASES = {
    "pool-2": (pool(), 2, Acqb(alpha_scale=0.2, estimator="newton_cg", optimism="ucb")),
    "pool-1, exact": (pool(), 1, Acqb(alpha_scale=0.2, estimator="newton_cg", exact_steps=2)),
}
# Few dimensions: number by number, five take a CPU's compiler minutes.
FEW = sources.Synthetic(num_servers=3, dim=2)
CASES |= {
    "running-2": (FEW, 2, Acqb(alpha_scale=0.2)),
    "running-2, mixed": (FEW, 2, Acqb(alpha_scale=0.2, exploit_size=1)),
    "pool-2, mixed": (pool(), 2, Acqb(alpha_scale=0.2, estimator="newton_cg", exploit_size=1)),
    "running-1, shared": (dataclasses.replace(FEW, parameters="shared"), 1, Acqb(alpha_scale=0.2)),
}


@pytest.mark.parametrize("platform", [platforms.CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("size", cases([1, 2, 3], [2]))
def test_residuals_solve_their_fixed_point_equation(size, platform, x64):
    """e = p(s - G e) - y, which `running_estimate._residuals` solves by Newton's method."""
    draws = np.random.default_rng(size)
    root, start = 0.4 * draws.normal(size=(size, size)), draws.normal(size=size)
    gram = root @ root.T
    # A new function, or JAX would find what it traced on the other platform.
    solve = jax.jit(functools.partial(running_estimate._residuals))
    for chosen in np.vstack([np.eye(size), np.zeros(size)]):
        with platforms.use(platform):
            excess = np.asarray(solve(start, gram, chosen))
        weights = np.exp(start - gram @ excess)
        expected = weights / (1 + weights.sum()) - chosen
        np.testing.assert_allclose(excess, expected, atol=1e-9, equal_nan=False)


@pytest.mark.parametrize("platform", [platforms.CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("width", [1, 2])
def test_weighted_row_sums_match_numpy(width, platform, x64):
    draws = np.random.default_rng(2)
    h, residual, features = (draws.normal(size=n) for n in ((width, 9), (9,), (3, 9)))
    # A new function, or JAX would find what it traced on the other platform.
    sums = jax.jit(functools.partial(likelihood._sums))
    with platforms.use(platform):
        value, upper = sums(h, residual, features)
    np.testing.assert_allclose(value, features @ residual, atol=1e-12)
    summed = np.einsum("ql,il,jl->qij", h, features, features)
    np.testing.assert_allclose(packed_matrices.unpack(upper, 3), summed, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_cpu_and_gpu_paths_play_the_same_runs(name, x64, monkeypatch):
    source, size, policy = CASES[name]
    # So few rows that every block has several pages.
    monkeypatch.setattr(paged_history, "PAGE_ALONE", 8)
    monkeypatch.setattr(paged_history, "PAGE_COUPLED", 8)
    rate = 0.9 if name.startswith("pool") else 0.6
    source, problem = pytree.as_arrays(source), source.problem(size, HORIZON)

    def play(seed):
        return simulate.run_rounds(rng.run_key(seed), policy, source, rate, problem, CAPACITY)[0]

    ways, runs = {"cpu": platforms.CPU, "gpu": GPU}, {}
    if name.startswith("pool"):
        ways["gpu without kernels"] = GPU._replace(kernels=False)
    for way, choices in ways.items():
        with platforms.use(choices):
            # A new function, or JAX would find what it traced the first time.
            seeds = jnp.asarray(SEEDS)
            lowered = jax.jit(jax.vmap(functools.partial(play))).lower(seeds)
            runs[way] = backend.compile_lowered(lowered, "cpu")(seeds)
    theirs = jax.tree.leaves_with_path(runs.pop("cpu"))
    for way, run in runs.items():
        ours = jax.tree.leaves_with_path(run)
        assert len(ours) > 5
        for (path, one), (_, other) in zip(ours, theirs, strict=True):
            where = f"{name} {way} {jax.tree_util.keystr(path)}"
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-8, err_msg=where)
        assert any((np.asarray(leaf) != 0).any() for _, leaf in ours)


@pytest.mark.slow
@pytest.mark.parametrize("choices", [platforms.CPU, GPU], ids=["cpu", "gpu"])
def test_small_solves_and_writes_match_numpy(choices, x64):
    draws = np.random.default_rng(2)
    root = draws.normal(size=(5, 5))
    matrix, right = root @ root.T + np.eye(5), draws.normal(size=(2, 5))
    residual = draws.normal(size=9)
    table, at = draws.normal(size=(6, 4)), np.array([4, 1])
    with platforms.use(choices):
        hessian = jnp.asarray(matrix)
        if choices.fused:
            hessian = packed_matrices.pack(hessian)[None, None]
        (solved,) = running_estimate.solve(hessian, jnp.asarray(right))
        rows = linalg.put_rows(jnp.asarray(table), jnp.asarray(at), jnp.ones((2, 4)))
        one = linalg.put(jnp.asarray(table), (jnp.asarray(at), jnp.asarray([3, 9])), jnp.ones(2))
        read = linalg.take(jnp.asarray(table), jnp.asarray(at), jnp.asarray([3, 0]))
        single = linalg.take(jnp.asarray(table), jnp.asarray(at[:1]), jnp.asarray([3]))
        joined = linalg.concatenate(jnp.asarray(table[0]), jnp.asarray(residual))
    np.testing.assert_allclose(solved, right @ np.linalg.inv(matrix), atol=1e-10)
    np.testing.assert_array_equal(read, table[at, [3, 0]])
    np.testing.assert_array_equal(single, table[4, 3:])
    np.testing.assert_array_equal(joined, np.concatenate([table[0], residual]))
    table[4, 3] = 1.0  # the other one is out of bounds
    np.testing.assert_array_equal(one, table)
    table[at] = 1.0
    np.testing.assert_array_equal(np.asarray(rows)[at], table[at])
    others = [0, 2, 3, 5]
    np.testing.assert_array_equal(np.asarray(rows)[others], table[others])


@pytest.mark.slow
def test_batchable_keys_draw_the_same_gammas():
    key = rng.round_key(rng.run_key(3), 7)
    with platforms.use(GPU):
        other = rng.batchable_key(key)
    assert str(jax.random.key_impl(other)) != str(jax.random.key_impl(key))
    shapes = jnp.array([0.5, 2.0, 9.0])
    np.testing.assert_array_equal(
        jax.random.loggamma(other, shapes), jax.random.loggamma(key, shapes)
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_pass_over_images_matches_matrix_products(size, x64, monkeypatch):
    # Tiles of a few rows, so that a run takes several programs, the last of them part empty.
    monkeypatch.setattr(whitened_kernel, "TILE", 256)
    draws = np.random.default_rng(size)
    width, servers, rows, dim = 3, 5, 130, 12
    image = draws.normal(size=(width, servers, rows, dim))
    shown = np.stack([draws.permutation(servers)[:size] for _ in range(width)]).astype(np.int32)
    along, pull, times = draws.normal(size=(3, width, size, rows))
    row, push = draws.normal(size=(2, width, size, dim))
    weight = draws.normal(size=(width, size, size, rows))

    def run_both(image, shown, along, row, pull, push, weight, times):
        first = whitened_kernel.run_pass(image, shown, TablePass(along, row, pull=pull))
        curved = TablePass(push=push, weight=weight, times=times, pulls_curved=True)
        return first, whitened_kernel.run_pass(first.table, shown, curved)

    with platforms.use(GPU):
        first, second = jax.vmap(run_both)(image, shown, along, row, pull, push, weight, times)
    changed = image.copy()
    for run, of in enumerate(shown):
        changed[run, of] -= along[run][..., None] * row[run][:, None]
    np.testing.assert_allclose(first.table, changed, rtol=1e-12, atol=1e-12)
    here = changed[np.arange(width)[:, None], shown]
    assert first.pushed is None and first.bend is None
    np.testing.assert_allclose(first.pulled, np.einsum("bkid,bki->bkd", here, pull), atol=1e-11)
    pushed = np.einsum("bkid,bkd->bki", here, push)
    curved = np.einsum("bjki,bki->bji", weight, pushed) - times * pushed
    np.testing.assert_allclose(second.pushed, pushed, atol=1e-11)
    np.testing.assert_allclose(second.bend, (pushed * curved).sum(axis=(1, 2)), atol=1e-9)
    np.testing.assert_allclose(second.pulled, np.einsum("bkid,bki->bkd", here, curved), atol=1e-10)


def test_tracing_uses_the_choices_of_the_platform():
    assert platforms.get("cpu") is platforms.CPU and platforms.get("gpu") is platforms.GPU
    assert platforms.get_current() is platforms.get(jax.default_backend())
    with platforms.use(GPU):
        assert platforms.get_current() is GPU
        with platforms.use(platforms.CPU):
            assert platforms.get_current() is platforms.CPU
        assert platforms.get_current() is GPU
    assert platforms.get_current() is platforms.get(jax.default_backend())


def test_pallas_kernels_run_on_cuda_only_and_can_be_disabled(monkeypatch):
    monkeypatch.delenv(platforms.SETTING, raising=False)
    assert platforms.get("cuda").kernels and platforms.get("cuda").fused
    for name in ("rocm", "tpu"):
        assert platforms.get(name) == platforms.GPU._replace(kernels=False)
    for version, kernels in (("PJRT C API\ncuda 12090", True), ("rocm 60000", False)):
        device = types.SimpleNamespace(client=types.SimpleNamespace(platform_version=version))
        monkeypatch.setattr(jax, "devices", lambda _, device=device: [device])
        assert platforms.get("gpu").kernels == kernels
    monkeypatch.setenv(platforms.SETTING, "0")
    assert not platforms.get("cuda").kernels and not platforms.CPU.kernels


@pytest.mark.parametrize("fault", cases([None, "raises", "wrong"], ["wrong"]))
def test_failing_pallas_kernels_fall_back_to_xla_with_one_warning(fault, monkeypatch):
    original = whitened_kernel.run_pass

    def run_pass(table, servers, job):
        if fault == "raises":
            raise NotImplementedError("no Triton\nhere")
        with platforms.use(GPU):
            result = original(table, servers, job)
        if fault == "wrong" and result.pushed is not None:
            result = result._replace(pushed=result.pushed + 1)
        return result

    monkeypatch.setattr(whitened_kernel, "run_pass", run_pass)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    whitened_kernel._works_here.cache_clear()
    with warnings.catch_warnings(record=True) as caught, platforms.use(platforms.GPU):
        warnings.simplefilter("always")
        available = [whitened_kernel.is_available() for _ in range(2)]
    whitened_kernel._works_here.cache_clear()
    assert available == [fault is None] * 2
    messages = [str(one.message) for one in caught if "Pallas" in str(one.message)]
    expected = {
        None: [],
        "raises": ["NotImplementedError: no Triton)"],
        "wrong": ["results are wrong"],
    }
    assert len(messages) == len(expected[fault])
    assert all(part in message for part, message in zip(expected[fault], messages, strict=True))
