"""Networks: children for budgets, scores, threads, and the sessions that stay open."""

import ast
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import joslim_runtime
from joslim_runtime import BundleError, Network

from .by_hand import FACTORS, WEIGHT, graph

MakeBundle = Callable[..., Path]
HOUSE = Path(joslim_runtime.__file__).parent


@pytest.fixture
def net(make_bundle: MakeBundle) -> Network:
    return joslim_runtime.open(make_bundle(), keep=2)


def expected(images: np.ndarray, name: str) -> np.ndarray:
    """The scores by numpy."""
    weights, biases = {
        "child-01": (WEIGHT[:2] * FACTORS.reshape(2, 1, 1, 1), [0.5, -0.5]),
        "child-02": (WEIGHT[[0, 3]], [0.5, -0.5]),
        "child-03": (WEIGHT, [1, 2, 3, 4]),
    }[name]
    return images.mean(axis=(2, 3)) @ weights[:, :, 0, 0].T + np.array(biases, np.float32)


@pytest.mark.parametrize("name", ["child-01", "child-02", "child-03"])
def test_scores(name: str, net: Network) -> None:
    images = np.random.default_rng(0).normal(size=(5, 2, 3, 3)).astype(np.float32)
    assert net.use(name).name == net.active.name == name
    np.testing.assert_allclose(net(images), expected(images, name), atol=1e-6)
    np.testing.assert_allclose(net(images[:1]), expected(images, name)[:1], atol=1e-6)
    np.testing.assert_allclose(net(images, "child-01"), expected(images, "child-01"), atol=1e-6)
    assert net.active.name == name


def test_the_best_child_is_active_at_first(net: Network) -> None:
    assert net.active == net.front[-1]
    assert [child.name for child in net.front] == ["child-01", "child-02", "child-03"]
    assert (net.classes[0], net.shape, net.dims) == ("ant", (2, 3, 3), (("conv", 4),))
    assert net.front[0].test_error is None
    assert net.front[0].val_error == 2.0


def test_budgets(net: Network) -> None:
    assert net.use(macs=3).name == "child-02"
    assert net.use(macs=2.9).name == "child-01"
    assert net.use(macs=1e9, memory=30).name == "child-02"


@pytest.mark.parametrize(
    ("budgets", "line"),
    [
        ({}, "budget: none given; give at least one of: macs, memory"),
        ({"latency_ms": 3}, "budget: unknown name 'latency_ms'; allowed: macs, memory"),
        ({"macs": 1}, "budget: no child of 3 fits macs 1; the least costs are macs 2"),
        ({"macs": "2M"}, "macs: '2M' given, a positive number needed"),
        ({"macs": float("nan")}, "macs: nan given, a positive number needed"),
    ],
)
def test_budgets_that_cannot_be_kept(budgets: dict, line: str, net: Network) -> None:
    with pytest.raises(BundleError) as caught:
        net.use(**budgets)
    assert str(caught.value) == line
    assert net.active == net.front[-1]


def test_bad_requests(net: Network, make_bundle: MakeBundle) -> None:
    with pytest.raises(BundleError, match=r"unknown name 'child-9'; allowed: child-01 to child-03"):
        net.use("child-9")
    with pytest.raises(BundleError, match="a child and a budget given"):
        net.use("child-01", macs=3)
    with pytest.raises(BundleError, match=r"shape \(2, 3, 3\) given, \[n, 2, 3, 3\] needed"):
        net(np.zeros((2, 3, 3)))
    with pytest.raises(BundleError, match="keep: 0 given"):
        joslim_runtime.open(make_bundle(), keep=0)


def test_a_child_that_onnxruntime_refuses(make_bundle: MakeBundle) -> None:
    path = make_bundle(lambda record: record["children"][0]["weights"].pop())
    with pytest.raises(BundleError, match="cannot open child-01: ") as caught:
        joslim_runtime.open(path).use("child-01")
    assert "\n" not in str(caught.value)


def test_a_graph_that_is_none(make_bundle: MakeBundle) -> None:
    net = joslim_runtime.open(make_bundle(entries={"graphs/1.onnx": graph()[:40]}))
    with pytest.raises(BundleError, match="cannot open child-03: "):
        net(np.zeros((1, 2, 3, 3)))


def test_the_last_children_stay_open(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = Network._opened

    def counting(self: Network, child: joslim_runtime.Child) -> object:
        opened.append(child.name)
        return real(self, child)

    monkeypatch.setattr(Network, "_opened", counting)
    for name in ("child-01", "child-02", "child-01", "child-02", "child-03", "child-02"):
        net.use(name)
    assert opened == ["child-01", "child-02", "child-03"]
    net.use("child-01")
    assert opened[-1] == "child-01"
    assert len(net._sessions) == 2


def test_threads_with_children_of_their_own(net: Network) -> None:
    images = np.ones((1, 2, 3, 3), np.float32)
    wrong: list[str] = []

    def serve(name: str) -> None:
        for _ in range(50):
            if not np.allclose(net(images, name), expected(images, name), atol=1e-5):
                wrong.append(name)

    names = [child.name for child in net.front]
    threads = [threading.Thread(target=serve, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_child_as_a_file_of_its_own(net: Network, tmp_path: Path) -> None:
    import onnx

    net.save(tmp_path / "child.onnx", "child-01")
    onnx.checker.check_model(onnx.load(tmp_path / "child.onnx"))
    images = np.ones((2, 2, 3, 3), np.float32)
    (scores,) = onnxruntime.InferenceSession(tmp_path / "child.onnx").run(None, {"images": images})
    np.testing.assert_allclose(scores, expected(images, "child-01"), atol=1e-6)


def test_classify(net: Network) -> None:
    image = np.full((3, 3, 2), 0.5)
    scores = expected(np.array([0, 1], np.float32).reshape(1, 2, 1, 1), "child-03")[0]
    name, share = net.classify(image)
    assert name == net.classes[scores.argmax()]
    assert share == pytest.approx(np.exp(scores.max()) / np.exp(scores).sum(), rel=1e-5)


# Without torch


def test_only_numpy_and_onnxruntime_are_imported() -> None:
    for source in HOUSE.glob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.split(".")[0] for name in names}
            allowed = {*sys.stdlib_module_names, "numpy", "onnxruntime", "joslim_runtime"}
            assert roots <= allowed, source


WITHOUT_TORCH = """
import sys

class Blocked:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("torch", "onnx", "joslim", "scipy", "PIL", "safetensors"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
import numpy as np
import joslim_runtime

net = joslim_runtime.open(sys.argv[1])
net.use(macs=2)
print(net(np.ones((1, *net.shape))).tolist(), net.classify(np.zeros((9, 9)))[0])
assert "torch" not in sys.modules
"""


WITHOUT_ONNXRUNTIME = """
import sys
sys.modules["onnxruntime"] = None
import joslim_runtime
try:
    joslim_runtime.open(sys.argv[1]).use(macs=2)
except joslim_runtime.BundleError as error:
    print(error)
"""


def test_a_process_without_onnxruntime(make_bundle: MakeBundle) -> None:
    command = [sys.executable, "-c", WITHOUT_ONNXRUNTIME, str(make_bundle())]
    result = subprocess.run(command, cwd=HOUSE.parent, capture_output=True, text=True, check=True)
    assert result.stdout == "onnxruntime: not installed; type pip install onnxruntime\n"


def test_a_process_without_torch(make_bundle: MakeBundle) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(make_bundle())]
    result = subprocess.run(command, cwd=HOUSE.parent, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    scores = expected(np.ones((1, 2, 3, 3), np.float32), "child-01").tolist()
    assert result.stdout.startswith(str(scores))
