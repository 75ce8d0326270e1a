"""Programs run from C: the example is built and run, and gives the integers that Python gives."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.networks import Network
from tests.conformance.networks import draw as draw_network
from tests.engines.native.c_library import CC, CLASSIFY, ROOT, build, library
from tests.fuzz.plans import in_four_bits

from intact8.engines import engine_status, get_engine
from intact8.engines.native.stored_plan import stored_plan
from intact8.errors import EngineError
from intact8.golden import with_golden
from intact8.opset.op import Op, Tensor
from intact8.program import integrity
from intact8.program.file import digest, load, save
from intact8.program.program import Program

pytestmark = [
    pytest.mark.skipif(engine_status()["native"] is not None, reason="the native library was not built"),
    pytest.mark.skipif(CC is None, reason="needs a C compiler"),
]
RUN_ALL = r"""
#include <intact8.h>
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **arguments) {
    intact8_program *net = intact8_open(arguments[1]);
    if (!net) return fprintf(stderr, "%s\n", intact8_error()), 1;
    const int plan = count > 3 ? atoi(arguments[3]) : 0;
    const intact8_interface ends = intact8_describe_plan(net, plan);
    void *in[64], *out[64];
    for (int i = 0; i < ends.inputs; i++) {
        in[i] = malloc(ends.input[i].bytes);
        if (fread(in[i], 1, ends.input[i].bytes, stdin) != ends.input[i].bytes) return 2;
    }
    for (int i = 0; i < ends.outputs; i++) out[i] = malloc(ends.output[i].bytes);
    intact8_runner *runner = intact8_prepare_plan(net, plan, atoi(arguments[2]));
    const int failed = !runner || !intact8_run(runner, (const void *const *)in, out) || count < 3;
    if (failed) return fprintf(stderr, "%s\n", intact8_error()), 1;
    for (int i = 0; i < ends.outputs; i++) fwrite(out[i], 1, ends.output[i].bytes, stdout), free(out[i]);
    for (int i = 0; i < ends.inputs; i++) free(in[i]);
    intact8_release(runner);
    intact8_close(net);
    return 0;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, and a program that runs anything."""
    made = tmp_path_factory.mktemp("c")
    (made / "run.c").write_text(RUN_ALL)
    build(tmp_path_factory, made, CLASSIFY, made / "run.c")
    return made


def run(
    folder: Path, path: Path, *inputs: np.ndarray, threads: int = 1, plan: int = 0
) -> subprocess.CompletedProcess[bytes]:
    """What the C program says of a call."""
    given = b"".join(np.ascontiguousarray(x).tobytes() for x in inputs)
    return subprocess.run(
        [folder / "run", path, str(threads), str(plan)], input=given, capture_output=True, timeout=60, check=False
    )


def digits() -> Program:
    """A classifier of images of 8 by 8 pixels: floats in, floats out."""
    net = Network(np.random.default_rng(3))
    net.start((1, 16, 8, 8))
    inner = net.program((net.conv(net.max_pool(net.conv("x", 24, 3)), 10, 1),))
    q, last = inner.tensors["x"], inner.outputs[0]
    tensors = {"image": Tensor("image", "float32", q.shape), **inner.tensors}
    head = Op("x", "quantize", ("image",), {"lo": 0, "hi": 255})
    out = inner.tensors[last]
    tensors["flat"] = replace(out, name="flat", shape=(None, int(np.prod([d for d in out.shape[1:] if d]))))
    tensors["scores"] = Tensor("scores", "float32", tensors["flat"].shape)
    size = tensors["flat"].shape[1]
    ends = (Op("flat", "reshape", (last,), {"shape": [-1, size]}), Op("scores", "dequantize", ("flat",), {}))
    return with_golden(Program(tensors, (head, *inner.ops, *ends), ("image",), ("scores",)))


def test_the_example_classifies_as_python_does(folder: Path, tmp_path: Path) -> None:
    program = digits()
    path = save(program, tmp_path / "digits.safetensors", plan=True)
    images = np.random.default_rng(0).normal(0, 3, (20, 16, 8, 8)).astype(np.float32)
    images.tofile(tmp_path / "images.bin")
    done = subprocess.run(
        [folder / "classify", path, tmp_path / "images.bin"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    wanted = program.run(images, engine="reference")
    for line, row in zip(done.stdout.splitlines(), wanted, strict=True):
        best, _, scores = line.partition(":")
        assert int(best) == row.argmax() and np.array_equal(np.array(scores.split(), np.float32), row)
    assert (
        subprocess.run([folder / "classify", path, tmp_path / "none"], capture_output=True, check=False).returncode == 1
    )


@pytest.mark.long
def test_the_library_that_ships_is_below_a_megabyte() -> None:
    """The folder's is built quickly, without the optimizations that make code small."""
    subprocess.run(["make", "libintact8"], cwd=ROOT, check=True, capture_output=True, timeout=500)
    assert (ROOT / "build" / "libintact8.so").stat().st_size < 1 << 20


def test_the_library_shows_its_functions_only(tmp_path_factory: pytest.TempPathFactory) -> None:
    if shutil.which("nm"):
        made = library(tmp_path_factory) / "libintact8.so"
        told = subprocess.run(["nm", "-D", made], capture_output=True, text=True, check=True).stdout
        shown = set(re.findall(r" T (\w+)", told)) - {"_init", "_fini"}
        header = (ROOT / "native" / "c_api" / "intact8.h").read_text()
        assert shown == set(re.findall(r"^INTACT8_API .*?(intact8_\w+)\(", header, re.MULTILINE))


@pytest.mark.parametrize("seed", range(12))
def test_networks_give_the_references_integers(folder: Path, tmp_path: Path, seed: int) -> None:
    program, x, _ = draw_network(seed)
    if seed % 3 == 0:
        program = in_four_bits(program)
    try:
        path = save(program, tmp_path / "net.safetensors", plan=True)
    except EngineError as error:
        pytest.skip(str(error))
    inputs = {name: value[:1] for name, value in (x if isinstance(x, dict) else {program.inputs[0]: x}).items()}
    wanted = b"".join(np.ascontiguousarray(y).tobytes() for y in get_engine("reference").prepare(program)(inputs))
    for threads in (1, 3):
        done = run(folder, path, *inputs.values(), threads=threads)
        assert done.returncode == 0, done.stderr
        assert done.stdout == wanted


def test_plans_of_several_sizes(folder: Path, tmp_path: Path) -> None:
    x, y = Tensor("x", "float32", (None, "n", 4)), Tensor("y", "float32", (None, "n", 7))
    weight = np.random.default_rng(0).normal(0, 1, (7, 4)).astype(np.float32)
    op = Op("y", "float.linear", ("x",), {}, {"weight": weight})
    program = Program({"x": x, "y": y}, (op,), ("x",), ("y",), dimensions={"n": (1, 9)})
    sizes = [{"n": 3}, {"batch": 5, "n": 9}, {"batch": 2, "n": 1}]
    path = save(program, tmp_path / "net.safetensors", plan=sizes)
    for plan, size in enumerate(sizes):
        given = np.random.default_rng(plan).normal(0, 1, (size.get("batch", 1), size["n"], 4)).astype(np.float32)
        done = run(folder, path, given, plan=plan)
        assert done.returncode == 0, done.stderr
        wanted = program.run(given, engine="reference")
        np.testing.assert_allclose(np.frombuffer(done.stdout, np.float32).reshape(wanted.shape), wanted, rtol=1e-5)
    for plan in (-1, len(sizes)):
        assert b"no such plan" in run(folder, path, plan=plan).stderr
    for wrong in ({"batch": 2}, {"n": 10}, {"n": 2, "m": 3}, {"batch": 0, "n": 2}):
        with pytest.raises(EngineError, match=r"plan: .* Remedy: plan=\[\{'batch': 1, 'n': …\}\]"):
            save(program, tmp_path / "other.safetensors", plan=[wrong])


def test_a_plan_changes_nothing_for_other_readers(tmp_path: Path) -> None:
    program = digits()
    plain, planned = save(program, tmp_path / "a.safetensors"), save(program, tmp_path / "b.safetensors", plan=True)
    assert digest(load(plain)) == digest(load(planned))
    assert b'"plan\\":' not in plain.read_bytes() and planned.stat().st_size > plain.stat().st_size
    again = save(load(planned), tmp_path / "c.safetensors")
    assert again.read_bytes() == plain.read_bytes(), "a plan is made when it is asked for"


def test_what_has_no_plan_is_refused(tmp_path: Path) -> None:
    x, y = Tensor("x", "float32", (None, "n", 4)), Tensor("y", "float32", (None, "n", 4))
    op = Op("y", "float.unary", ("x",), {"fn": "tanh"})
    program = Program({"x": x, "y": y}, (op,), ("x",), ("y",), dimensions={"n": (1, None)})
    with pytest.raises(EngineError, match="fixed sizes, and n may change"):
        save(program, tmp_path / "x.safetensors", plan=True)
    assert not list(tmp_path.iterdir())


def test_damaged_and_hostile_files_are_refused(folder: Path, tmp_path: Path) -> None:
    program, x = digits(), np.zeros((1, 16, 8, 8), np.float32)
    good = save(program, tmp_path / "good.safetensors", plan=True)
    assert run(folder, good, x).returncode == 0
    content, bad, rng = good.read_bytes(), tmp_path / "bad.safetensors", random.Random(0)

    def refused(data: bytes) -> bytes:
        bad.write_bytes(data)
        done = run(folder, bad, x)
        assert done.returncode == 1 and done.stderr, done
        return done.stderr

    assert b"cannot be opened" in run(folder, tmp_path / "none", x).stderr
    for data in (b"", b"x" * 7, b"x" * 100, content[:200], content[:-1], bytes(8) + content[8:]):
        refused(data)
    for _ in range(20):
        at = rng.randrange(len(content))
        assert (
            b"damaged" in refused(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
            or at < 8
        )
    plain = save(program, tmp_path / "plain.safetensors")
    assert b"plan=True" in refused(plain.read_bytes())
    start = content.index(b'\\"plan\\":\\"') + 11
    end = content.index(b'\\"', start)
    ends = 0
    for _ in range(150):  # whoever alters a plan can seal the file, too: it is refused, or gives other numbers
        altered = bytearray(content)
        for _ in range(rng.choice((1, 1, 3, 20))):
            altered[rng.randrange(start, min(end, start + 4000))] = rng.choice(b"ABCDwxyz0189+/")
        place = slice(integrity.PLACE, integrity.PLACE + integrity.DIGITS)
        altered[place] = integrity.BLANK.encode()
        bad.write_bytes(integrity.seal(bytes(altered)))
        done = run(folder, bad, x)
        assert done.returncode in (0, 1), done
        ends += done.returncode
    assert ends > 50


def test_plans_are_the_same_every_time() -> None:
    program = digits()
    places = {f"{op.name}/{role}": 0 for op in program.ops for role in op.arrays}
    assert stored_plan(program, places, ()) == stored_plan(program, places, ())
