"""After one's own loop: a run folder that every command takes, for any task."""

import json
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import joslim
from joslim import Front, Slimming
from joslim.errors import UserError
from joslim.runs.run import Run

IMAGES = torch.randn(24, 2, 8, 8, generator=torch.Generator().manual_seed(0))
MASKS = (IMAGES.sum(1, keepdim=True) > 0).float()
OPTIONS: dict[str, Any] = {
    "low": {"down": 0.25, "*": 0.5},
    "keep": ["stem"],
    "tie": [["up", "last"]],
    "divisor": 2,
}


class Segmenter(nn.Module):
    """Two channels in, a mask out."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.down = nn.Conv2d(channels, 16, 3, stride=2, padding=1)
        self.up = nn.Conv2d(16, channels, 3, padding=1)
        self.last = nn.Conv2d(2 * channels, 8, 1)
        self.other = nn.BatchNorm2d(8)
        self.mask = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        y = F.interpolate(F.relu(self.up(F.relu(self.down(x)))), scale_factor=2)
        return self.mask(F.relu(self.other(self.last(torch.cat([x, y], dim=1)))))


class TwoInputs(nn.Module):
    """Words and numbers in, a dictionary out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.numbers = nn.Embedding(9, 8), nn.Linear(3, 8)
        self.hidden, self.norm, self.out = nn.Linear(16, 12), nn.BatchNorm1d(12), nn.Linear(12, 2)

    def forward(self, words: Tensor, numbers: Tensor) -> dict[str, Tensor]:
        x = torch.cat([self.words(words).mean(1), self.numbers(numbers)], dim=1)
        x = self.norm(F.relu(self.hidden(x)))
        return {"place": self.out(x), "size": self.out(x).sum(dim=1)}


def wrong_pixels(outputs: Tensor, masks: Tensor) -> Tensor:
    return ((outputs > 0) != (masks > 0)).flatten(1).double().mean(dim=1)


def trained(**options: Any) -> tuple[Slimming, Front]:
    torch.manual_seed(0)
    net = joslim.slim(Segmenter(), IMAGES[:2], **{**OPTIONS, **options})
    slimming = Slimming(
        net, total_steps=8, every=2, full_first=0, scoring=[(IMAGES, MASKS)], distill=F.mse_loss
    )
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(8):
        slimming.step(IMAGES, MASKS, optimizer, F.binary_cross_entropy_with_logits)
    return slimming, slimming.front(val=[(IMAGES, MASKS)], metric=wrong_pixels)


@pytest.fixture(scope="module")
def loop() -> tuple[Slimming, Front]:
    """A training that has ended. Nobody may train it further."""
    return trained()


@pytest.fixture(scope="module")
def saved(loop: tuple[Slimming, Front], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody may change it."""
    slimming, front = loop
    return joslim.save(slimming, front, tmp_path_factory.mktemp("runs") / "masks").path


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A function that makes the network, as the command line names it."""
    name = "nets_of_a_loop:segmenter"
    (tmp_path / "nets_of_a_loop.py").write_text(
        "from tests.runs.test_saving import Segmenter\n\nsegmenter = lambda: Segmenter()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[2])])
    yield name
    sys.modules.pop("nets_of_a_loop", None)


def same_children(one: Any, other: Any, front: Front, *inputs: Tensor) -> bool:
    one.eval()
    for point in front:
        with torch.no_grad(), one.at(point.widths), other.at(point.widths):
            ours, theirs = one(*inputs), other(*inputs)
        pairs = zip(ours.values(), theirs.values()) if isinstance(ours, dict) else [(ours, theirs)]
        if not all(torch.equal(a, b) for a, b in pairs):
            return False
    return True


# A folder, and what is read from it


def test_all_of_it_comes_back(loop: tuple[Slimming, Front], saved: Path) -> None:
    slimming, front = loop
    run = joslim.load(saved, model=Segmenter())
    assert run.front == front
    assert len(front) > 1
    assert run.net.space == slimming.net.space
    assert run.net.statistics.keys() == {p.widths for p in front} >= {front[0].widths}
    assert same_children(slimming.net, run.net, front, IMAGES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it has statistics of its own
        run.net.use(run.front.pick(macs=front[0].costs["macs"]))
    assert len(run.history) == len(slimming.history)
    assert (run.config.model, run.config.method, run.config.steps) == ("<Segmenter>", "joslim", 8)
    torch.testing.assert_close(run.samples, (IMAGES,))


def test_without_the_statistics_children_are_lost(loop: tuple[Slimming, Front]) -> None:
    """A state dict is not enough."""
    slimming, front = loop
    again = joslim.slim(Segmenter(), IMAGES[:2], **OPTIONS).eval()
    again.load_state_dict(slimming.net.state_dict())
    with pytest.warns(UserWarning, match=r"state_dict\(\) does not hold .* joslim.save keeps them"):
        again.use(front[0])
    assert not same_children(slimming.net, again, front, IMAGES)


def test_a_network_alone_with_its_front(loop: tuple[Slimming, Front], tmp_path: Path) -> None:
    slimming, front = loop
    returned = joslim.save(slimming.net, front, tmp_path / "run", samples=IMAGES[:5])
    assert returned.front is front
    run = joslim.load(tmp_path / "run", model=Segmenter())
    assert same_children(slimming.net, run.net, front, IMAGES)
    assert len(run.samples[0]) == 5
    assert joslim.report(run).read_text().count("Segmenter")


def test_several_inputs_of_other_kinds_and_several_outputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    words, numbers, goals = torch.randint(9, (16, 4)), torch.randn(16, 3), torch.randn(16, 2)
    net = joslim.slim(TwoInputs(), (words[:1], numbers[:1]))

    def criterion(outputs: dict[str, Tensor], goals: Tensor) -> Tensor:
        return F.mse_loss(outputs["place"], goals)

    front = joslim.explore(net, [((words, numbers), goals)], criterion, children=6)
    joslim.save(net, front, tmp_path / "run")
    run = joslim.load(tmp_path / "run", model=TwoInputs())
    assert same_children(net, run.net, front, words, numbers)
    check = joslim.export(run, run.front[0], tmp_path / "child.onnx")
    assert (check.agreeing, check.samples) == (None, 32)
    session = onnxruntime.InferenceSession(tmp_path / "child.onnx")
    found = session.run(["output_0"], {"input_0": words.numpy(), "input_1": numbers.numpy()})
    child = net.eval().child(front[0].widths)
    np.testing.assert_allclose(found[0], child(words, numbers)["place"].detach(), atol=1e-5)
    joslim.export(net, front[0], tmp_path / "folder", samples=(words, numbers))
    again = joslim.load_child(tmp_path / "folder", model=TwoInputs())
    assert torch.equal(again(words, numbers)["size"], child(words, numbers)["size"])


def test_a_built_in_network_by_its_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(8, 3, 8, 8), torch.randint(4, (8,))
    net = joslim.slim(joslim.models.resnet8(num_classes=4), x[:1])
    front = joslim.explore(net, [(x, y)], F.cross_entropy, children=4)
    joslim.save(net, front, tmp_path / "run", model="resnet8")
    assert same_children(net, joslim.load(tmp_path / "run").net, front, x)


def test_code_is_not_imported_because_a_file_names_it(
    loop: tuple[Slimming, Front], nets: str, tmp_path: Path
) -> None:
    joslim.save(*loop, tmp_path / "run", model=nets)
    run = joslim.load(tmp_path / "run")
    with pytest.raises(UserError, match="not imported because a file says so; give it again"):
        _ = run.net
    assert "nets_of_a_loop" not in sys.modules
    assert same_children(loop[0].net, joslim.load(tmp_path / "run", nets).net, loop[1], IMAGES)


# The command line


def test_commands(
    saved: Path, nets: str, tmp_path: Path, joslim: Callable[..., Any], refused: Callable[..., str]
) -> None:
    place, budget = str(saved), ["--macs", "1G"]
    assert json.loads(joslim("front", place, "--json").stdout)["error"] == "val_error"
    assert joslim("pick", place, *budget).returncode == 0
    export = ["export", place, *budget, "-o", "child.onnx"]
    assert "type --model package.module:function" in refused(*export)
    shown = joslim(*export, "--int8", "--model", nets).stdout
    assert "before quantization largest difference" in shown
    assert "8 bits: largest difference" in shown
    masks = onnxruntime.InferenceSession("child.onnx").run(None, {"input": IMAGES.numpy()})[0]
    assert masks.shape == MASKS.shape
    assert joslim("report", place, "-o", "page.html").returncode == 0
    assert joslim("allocate", place, place, *budget).returncode == 0
    measure = ["--children", "10", "--repeats", "1", "-o", "device.json"]
    assert joslim("latency", place, "--model", nets, *measure).returncode == 0
    timed = ["--latency-ms", "1000", "--device-file", "device.json"]
    assert joslim("pick", place, *timed).returncode == 0
    assert joslim("export", place, "--whole", "-o", "whole").returncode == 0
    assert joslim("front", "whole").returncode == 0
    for command in (["resume", place], ["resume", place, "--model", nets, "--until", "20"]):
        assert "was trained in a loop of its owner, which joslim cannot resume" in refused(*command)


def test_python_cannot_resume_it_either(saved: Path) -> None:
    before = sorted(saved.rglob("*"))
    with pytest.raises(UserError, match="which joslim cannot resume"):
        joslim.train("resnet8", "digits", out=saved, resume=True)
    assert sorted(saved.rglob("*")) == before


# A live network


@pytest.mark.parametrize("name", ["child.onnx", "child.pt2", "child"])
def test_a_live_network_is_exported(
    name: str, loop: tuple[Slimming, Front], tmp_path: Path
) -> None:
    slimming, front = loop
    check = joslim.export(slimming.net, front[0], tmp_path / name, samples=IMAGES)
    assert check.agreeing is None
    assert str(check).endswith("on 24 samples")
    if name == "child":
        child = joslim.load_child(tmp_path / name, model=Segmenter())
        with torch.no_grad(), slimming.net.eval().at(front[0].widths):
            assert torch.equal(child(IMAGES), slimming.net(IMAGES))


def test_children_without_statistics_are_not_exported(tmp_path: Path) -> None:
    net = joslim.slim(Segmenter(), IMAGES[:1])
    with pytest.raises(UserError, match="point: this child has no BatchNorm statistics"):
        joslim.export(net, net.space.smallest, tmp_path / "child.pt2")
    with pytest.raises(UserError, match=r"^run: int given; give a run, its folder or a slimmable"):
        joslim.export(3, net.space.full, tmp_path / "child.pt2")  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())


def test_the_page_of_a_loop(tmp_path: Path) -> None:
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    net = joslim.slim(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), x[:1])
    slimming = Slimming(
        net, total_steps=4, every=2, full_first=0, scoring=[(x, y)], distill=F.mse_loss
    )
    with pytest.raises(UserError, match="no step was logged"):
        joslim.report(slimming, tmp_path / "page.html")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(3):
        slimming.step(x, y, optimizer, F.mse_loss)
    assert '"judged":false' in joslim.report(slimming, tmp_path / "page.html").read_text()
    with pytest.raises(UserError, match=r"call slimming.front\(\) first"):
        joslim.report(slimming, tmp_path / "front.png")
    slimming.front()
    text = joslim.report(slimming, tmp_path / "page.html").read_text()
    assert '"judged":true' in text
    assert "joslim export RUN" in text
    assert joslim.report(slimming, tmp_path / "front.png").stat().st_size > 1000
    with pytest.raises(UserError, match="path: needed for a Slimming"):
        joslim.report(slimming)


def test_runs_of_two_tasks_are_not_compared(saved: Path, tmp_path: Path) -> None:
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    net = joslim.slim(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1)), x[:1])
    front = joslim.explore(net, [(x, y)], F.mse_loss, children=4)
    run = joslim.save(net, front, tmp_path / "regression")
    text = joslim.report([saved, run.path], tmp_path / "both.html").read_text()
    assert "own loop, from 1x4 to 1x1" in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert len(data["boards"]) == 2
    assert [row["seed"] for row in data["runs"]] == [None, None]


# What is refused


def test_another_network(saved: Path) -> None:
    other = nn.Sequential(nn.Conv2d(2, 8, 3), nn.Conv2d(8, 1, 3))
    with pytest.raises(UserError, match=r"^(keep|low|model): "):
        _ = joslim.load(saved, model=other).net
    with pytest.raises(UserError, match=r"^model: .* not those of the run"):
        _ = joslim.load(saved, model=Segmenter(channels=12)).net


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"front": "front"}, "front: str given"),
        ({"front": None}, "front: its children are of another network"),
        ({"samples": IMAGES[:, :1]}, r"samples: \(24, 1, 8, 8\) float32 given, .* \(n, 2, 8, 8\)"),
        ({"samples": (IMAGES, IMAGES)}, "samples: .* given, the network takes"),
        ({"model": "own"}, "model: 'own' is no built-in model; type package.module:function"),
        ({"folder": "."}, "out: '.' is not empty and holds no run"),
    ],
)
def test_bad_arguments(
    options: dict[str, Any],
    message: str,
    loop: tuple[Slimming, Front],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").touch()
    slimming, front = loop
    if options.get("front", 0) is None:
        net = joslim.slim(Segmenter(), IMAGES[:1], low=0.5)
        options["front"] = joslim.explore(
            net, [(IMAGES, MASKS)], F.binary_cross_entropy_with_logits, children=2
        )
    values = {"front": front, "folder": "run", **options}
    with pytest.raises(UserError, match=f"^{message}"):
        joslim.save(slimming, **values)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_weights_that_have_changed_since(tmp_path: Path) -> None:
    slimming, front = trained()
    slimming.advance()
    with pytest.raises(
        UserError, match=r"weights have changed since; call slimming.front\(\) again"
    ):
        joslim.save(slimming, front, tmp_path / "run")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("inputs", []),
        ("inputs", [{"shape": [1, 2, 8, 10**9], "dtype": "float32"}]),
        ("inputs", [{"shape": [1, 2, 8, 8], "dtype": "object"}]),
        ("inputs", [{"shape": [1, 3, 8, 8], "dtype": "float32"}]),
        ("inputs", [3]),
        ("outputs", 3),
        ("low", "half"),
        ("keep", None),
        ("tie", [3]),
        ("divisor", 0),
    ],
)
def test_a_folder_of_a_stranger(key: str, value: Any, saved: Path, tmp_path: Path) -> None:
    run = Run(joslim.load(saved).folder, model=Segmenter())
    run.facts = {**run.facts, "network": {**run.facts["network"], key: value}}
    with pytest.raises(UserError):
        _ = run.net


# Other users


@pytest.fixture
def as_another_user(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Take away the right to read a file or a folder from whoever runs the tests, root too."""
    if os.geteuid() == 0:
        for folder in (tmp_path, *tmp_path.parents[:2]):
            folder.chmod(0o755)
    taken: list[Path] = []

    def take(path: Path) -> None:
        taken.append(path)
        path.chmod(0)
        if os.geteuid() == 0:
            os.seteuid(65534)

    yield take
    if os.getuid() == 0:
        os.seteuid(0)
    for path in taken:
        path.chmod(0o755)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_modes_follow_the_umask(umask: int, loop: tuple[Slimming, Front], tmp_path: Path) -> None:
    slimming, front = loop
    before = os.umask(umask)
    try:
        joslim.save(slimming, front, tmp_path / "run")
        joslim.export(slimming.net, front[0], tmp_path / "child")
    finally:
        os.umask(before)
    for path in (*tmp_path.rglob("*"),):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o777 if path.is_dir() else 0o666) & ~umask, path


@pytest.mark.parametrize(
    "name", ["config.json", "checkpoint/model.safetensors", "samples.safetensors", "."]
)
def test_another_user_is_told_of_the_permission(
    name: str,
    loop: tuple[Slimming, Front],
    tmp_path: Path,
    as_another_user: Callable[[Path], None],
) -> None:
    folder = joslim.save(*loop, tmp_path / "run").path
    _ = joslim.load(folder, model=Segmenter()).net  # imports what it needs
    as_another_user(folder / name)
    with pytest.raises(UserError, match=r"cannot (be )?read.*Permission denied"):
        _ = joslim.load(folder, model=Segmenter()).net
