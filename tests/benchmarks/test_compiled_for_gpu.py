"""What the main programs do in a round on an H100, by the programs that XLA compiles for one.

The compiler runs without a device (the `compile-for-gpu` extra). CI installs it for these tests
alone and announces it by CQBJAX_GPU_COMPILER; without it they are skipped with the reason.
"""

import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from benchmarks import compile_for_gpu, hlo
from benchmarks.compile_for_gpu import Compiled

MB = 1_000_000


class OperationLimits(NamedTuple):
    """What one round may be at most, and a turn of its loop over waiting queries if it has one.

    `table` is the size that no kernel may write outside its place: the bytes of a run's page store
    at d = 5, and of a server's image at d = 384.
    """

    kernels: int
    bytes_a_run: float
    turn: tuple[int, float] | None
    table: int


IMAGE = 1000 * 384 * 4
LIMITS = {
    ("d=5 N=5 K=1", "acqb"): OperationLimits(44, 27_200, None, 12 * 8 * 128 * 4),
    ("d=5 N=5 K=2", "acqb"): OperationLimits(93, 198_000, None, 36 * 16 * 64 * 4),
    ("d=5 N=5 K=1", "random"): OperationLimits(12, 20_100, None, 20_000),
    ("d=384 N=14 K=1", "acqb"): OperationLimits(47, 7.97 * MB, (4, 0.79 * MB), IMAGE),
    ("d=384 N=14 K=2", "acqb"): OperationLimits(75, 20.6 * MB, (8, 2.38 * MB), IMAGE),
}
# Relative difference of the planned bytes of a run and those of the compiled program.
PLANNED = 0.1
# Of all runs at once: products by NVIDIA's library; kernels of our own, by two jaxlibs' names.
BATCHED = (
    "__cublas$gemm", "__cublas$lt$matmul", "__gpu$xla.gpu.triton", "triton_kernel_call_ffi",
)  # fmt: skip
# One program in a process of its own, which prints it as JSON.
ALONE = """
import json, sys
import jax
from benchmarks import compile_for_gpu

jax.config.update("jax_default_matmul_precision", "highest")
devices = compile_for_gpu.make_devices(compile_for_gpu.H100)
programs = compile_for_gpu.list_programs(False)
(case,) = [case for case, label in programs if [case.name, label] == sys.argv[1:]]
print(json.dumps(compile_for_gpu.compile_case(case, sys.argv[2], devices)._asdict()))
"""
TRANSFERS = ("infeed", "outfeed", "send", "recv", "copy-start", "async-start")
HOST = "S(5)"


def child(*words: str) -> str:
    """Run Python in a process that has not used JAX yet, and return what it prints."""
    absent = compile_for_gpu.find_missing()
    if absent:
        if os.environ.get("CQBJAX_GPU_COMPILER"):
            pytest.fail(absent)
        pytest.skip(absent)
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]
    return done.stdout


def faults(loop: hlo.Loop, most: OperationLimits, width: int, turns: int = 1) -> list[str]:
    """Return what is wrong with a loop over rounds."""
    wrong = []
    for kernel in loop.all_kernels():
        custom = kernel.operation == "custom-call" and kernel.target not in BATCHED
        if custom or kernel.operation in TRANSFERS or HOST in kernel.shape:
            wrong.append(f"{kernel.operation} {kernel.target} {kernel.shape}")
        if kernel.fresh >= most.table * width:
            wrong.append(f"a table is copied: {kernel.name} {kernel.plain_shape}")
    if [one.turns for one in loop.loops] != ([] if most.turn is None else [None]):
        wrong.append(f"loops within a round: {[one.turns for one in loop.loops]}")
    (kernels, moved), (more, further) = loop.work, loop.work_a_turn
    allowed = most.turn or (0, 0.0)
    for what, is_, bound in (
        ("kernels", kernels, most.kernels), ("bytes", moved / width, most.bytes_a_run),
        ("kernels a turn", more, allowed[0]), ("bytes a turn", further / width, allowed[1]),
    ):  # fmt: skip
        if is_ > bound:
            wrong.append(f"{what}: {is_:,.0f}, at most {bound:,.0f}")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize(("name", "label"), LIMITS)
def test_compiled_rounds_stay_on_the_gpu_within_limits_of_kernels_and_bytes(name, label):
    printed = child("-c", ALONE, name, label)
    program = Compiled(**json.loads(printed.splitlines()[-1]))
    (rounds,) = program.record.loops
    assert not faults(rounds, LIMITS[name, label], program.width)
    (case,) = [c for c, of in compile_for_gpu.list_programs(False) if (c.name, of) == (name, label)]
    planned = case.bytes_a_run(label)
    assert planned == pytest.approx(program.bytes / program.width, rel=PLANNED)


PLANTED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from benchmarks import compile_for_gpu

device = compile_for_gpu.make_devices(compile_for_gpu.H100)
whole = NamedSharding(Mesh(np.array(device), ("run",)), PartitionSpec())

def plain(table, at):
    return table.at[at].add(1.0).at[:, 0].multiply(0.5)

def copied(table, at):
    return table[::-1] + table[at]

def one_by_one(table, at):
    return table.at[at].set(jnp.linalg.eigh(table[:8, :8] + jnp.eye(8))[0].sum())

def in_turns(table, at):
    return plain(table, at).at[:, 1].set(jax.lax.map(lambda row: jnp.sort(row)[at], table[:64])[0])

for fault in (plain, copied, one_by_one, in_turns):
    def rounds(table):
        return jax.lax.scan(lambda table, at: (fault(table, at), None), table, jnp.arange(4))[0]
    shape = jax.ShapeDtypeStruct((64, 256), "float32")
    jitted = jax.jit(rounds, in_shardings=whole, out_shardings=whole, donate_argnums=0)
    print("PROGRAM", fault.__name__)
    print(jitted.lower(shape).compile().as_text())
"""


# A callback to the host is no fault to look for: no program with one compiles without a device.
@pytest.mark.slow
def test_planted_faults_are_detected_in_compiled_programs():
    programs = {}
    for part in child("-c", PLANTED).split("PROGRAM ")[1:]:
        name, text = part.split("\n", 1)
        (loop,) = hlo.loops(text)
        programs[name] = faults(loop, OperationLimits(100, 1e9, None, 64 * 256 * 4), 1)
    assert list(programs) == ["plain", "copied", "one_by_one", "in_turns"]
    assert programs.pop("plain") == []
    expected = ("a table is copied", "custom-call", "loops within a round")
    for (name, wrong), word in zip(programs.items(), expected, strict=True):
        assert any(word in one for one in wrong), (name, wrong)


TEXT = """HloModule m

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%updated (p0: f32[10,100], p1: s32[], p2: f32[100]) -> f32[10,100] {
  %p0 = f32[10,100]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %p2 = f32[100]{0} parameter(2)
  %row = f32[1,100]{1,0} bitcast(%p2)
  %zero = s32[] constant(0)
  ROOT %in = f32[10,100]{1,0} dynamic-update-slice(%p0, %row, %p1, %zero)
}

%sliced (q0: f32[10,100], q1: s32[]) -> (f32[100], f32[100]) {
  %q0 = f32[10,100]{1,0} parameter(0)
  %q1 = s32[] parameter(1)
  %no = s32[] constant(0)
  %one = f32[1,100]{1,0} dynamic-slice(%q0, %q1, %no), dynamic_slice_sizes={1,100}
  %flat = f32[100]{0} bitcast(%one)
  %more = f32[100]{0} add(%flat, %flat)
  ROOT %both = (f32[100]{0}, f32[100]{0}) tuple(%flat, %more)
}

%inner (s: (s32[], f32[10,100])) -> (s32[], f32[10,100]) {
  %s = (s32[], f32[10,100]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%s), index=0
  %x = f32[10,100]{1,0} get-tuple-element(%s), index=1
  %again = f32[10,100]{1,0} copy(%x)
  ROOT %t = (s32[], f32[10,100]{1,0}) tuple(%n, %again)
}

%body (c: (s32[], f32[10,100], f32[100])) -> (s32[], f32[10,100], f32[100]) {
  %c = (s32[], f32[10,100]{1,0}, f32[100]{0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %table = f32[10,100]{1,0} get-tuple-element(%c), index=1
  %v = f32[100]{0} get-tuple-element(%c), index=2
  %read = (f32[100]{0}, f32[100]{0}) fusion(%table, %i), kind=kLoop, calls=%sliced
  %w = f32[100]{0} get-tuple-element(%read), index=1
  %written = f32[10,100]{1,0} fusion(%table, %i, %w), kind=kLoop, calls=%updated
  %start = (s32[], f32[10,100]{1,0}) tuple(%i, %written)
  %wh = (s32[], f32[10,100]{1,0}) while(%start), condition=%c1, body=%inner
  %f = (f32[10,10]{1,0}, s8[64]{0}) custom-call(%v), custom_call_target="cusolver_syevd"
  ROOT %out = (s32[], f32[10,100]{1,0}, f32[100]{0}) tuple(%i, %written, %w)
}

ENTRY %main (a0: f32[10,100]) -> f32[10,100] {
  %a0 = f32[10,100]{1,0} parameter(0)
  %begin = (s32[], f32[10,100]{1,0}, f32[100]{0}) custom-call(%a0), custom_call_target="x"
  %loop = (s32[], f32[10,100]{1,0}, f32[100]{0}) while(%begin), condition=%c0, body=%body, \
backend_config={"known_trip_count":{"n":"7"}}
  ROOT %r = f32[10,100]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_kernel_bytes_count_reads_and_writes():
    (loop,) = hlo.loops(TEXT)
    by_name = {kernel.name: kernel for kernel in loop.kernels}
    assert loop.turns == 7 and list(by_name) == ["read", "written", "f"]
    # A row and the index read, two rows written.
    assert (by_name["read"].bytes, by_name["read"].fresh) == (400 + 4 + 800, 800)
    # A row and the index read, the row written in place.
    assert (by_name["written"].bytes, by_name["written"].fresh) == (400 + 4 + 400, 0)
    assert (by_name["f"].bytes, by_name["f"].target) == (400 + 400 + 64, "cusolver_syevd")
    (inner,) = loop.loops
    assert inner.turns is None and loop.work == (3, 1204 + 804 + 864)
    assert loop.work_a_turn == (1, 8000) and inner.kernels[0].fresh == 4000
    expected = faults(loop, OperationLimits(2, 5000.0, (1, 7999.0), 1000), 1)
    assert [one.split(":")[0] for one in expected] == [
        "custom-call cusolver_syevd (f32[10,10]{1,0}, s8[64]{0})", "a table is copied", "kernels",
        "bytes a turn",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("f32[100]{0:S(5)} copy(%v)", "copy  f32[100]{0:S(5)}"),
        ("(f32[100]{0}, token[]) infeed(%v)", "infeed  (f32[100]{0}, token[])"),
        ('f32[1]{0} custom-call(%v), custom_call_target="xla_ffi_python_gpu_callback"',
         "custom-call xla_ffi_python_gpu_callback f32[1]{0}"),
    ],
)  # fmt: skip
def test_transfers_through_the_host_are_detected(operation, expected):
    most = OperationLimits(10, 1e6, (1, 1e6), 4001)
    line = (
        '  %f = (f32[10,10]{1,0}, s8[64]{0}) custom-call(%v), custom_call_target="cusolver_syevd"\n'
    )
    assert TEXT.count(line) == 1
    (loop,) = hlo.loops(TEXT.replace(line, f"  %f = {operation}\n"))
    assert faults(loop, most, 1) == [expected]
    (loop,) = hlo.loops(TEXT.replace(line, ""))
    assert faults(loop, most, 1) == []


def test_without_the_compiler_the_command_fails_with_a_reason(monkeypatch, capsys):
    from benchmarks import command

    monkeypatch.setattr(compile_for_gpu, "_folder", lambda package, name: None)
    command.measure(command.ARGUMENTS.parse_args(["--compile-for", "h100"]))
    printed = capsys.readouterr()
    assert "compile-for-gpu" in printed.err and printed.err.count("\n") == 1 and not printed.out
    with pytest.raises(compile_for_gpu.MissingWheels, match="install the wheels"):
        compile_for_gpu.make_devices(compile_for_gpu.H100)


def test_time_model_combines_kernel_launches_and_bytes():
    target = compile_for_gpu.H100
    assert compile_for_gpu.round_seconds(10, 0, target) == pytest.approx(22e-6)
    assert compile_for_gpu.round_seconds(0, 0.85 * 3.35e12, target) == pytest.approx(1.0)
