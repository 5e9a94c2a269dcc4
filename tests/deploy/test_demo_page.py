"""The page on which a bundle runs, in a real browser: the same scores as in Python."""

import http.server
import io
import shutil
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import joslim_runtime
from joslim.deploy import demo_page, export_bundle
from joslim.deploy.demo_page import RUNTIME, copy_runtime, downloaded, write_demo_page
from joslim.errors import UserError
from joslim.runs.run import Run

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NOTHING = "\N{EN DASH}"  # before there is a drawing
OFFLINE = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
OFFLINE += ("--disable-background-networking", "--disable-dev-shm-usage", "--window-size=1000,900")


@pytest.fixture(scope="module")
def page(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxscript")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("there is no chromium with its chromedriver")
    try:
        package = downloaded()
    except UserError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("page") / "page"
    write_demo_page(finished, folder, package)
    return folder


@pytest.fixture(scope="module")
def browser(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser that shows the page, as `python -m http.server` serves it."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(page))

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in (*OFFLINE, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.get(f"http://127.0.0.1:{server.server_port}/")
        wait(driver)
        yield driver
        asked = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        place = f"http://127.0.0.1:{server.server_port}/"
        assert all(name.startswith((place, "data:")) for name in driver.execute_script(asked))
        assert driver.get_log("browser") == []
    finally:
        driver.quit()
        server.shutdown()


def wait(browser: Any) -> None:
    """Until the answer of the chosen child is shown."""
    from selenium.webdriver.support.ui import WebDriverWait

    done = "return Boolean(view.child) && document.body.dataset.shown === view.child.name"
    WebDriverWait(browser, 60).until(lambda b: b.execute_script(f"{done} && !view.busy"))


def text(browser: Any, name: str) -> str:
    return browser.find_element("id", name).text


def move_slider(browser: Any, position: int) -> None:
    browser.execute_script(
        "const slider = document.getElementById('slider'); slider.value = arguments[0];"
        "slider.dispatchEvent(new Event('input'))",
        position,
    )
    wait(browser)


def test_scores_are_those_of_python(browser: Any, page: Path) -> None:
    net = joslim_runtime.open(page / "net.joslim")
    images = np.random.default_rng(0).normal(size=(3, 3, 8, 8)).astype(np.float32)
    script = """
        const [child, images, done] = arguments;
        view.net.scores(view.net.manifest.children[child], new Float32Array(images))
            .then((scores) => done([...scores]), (error) => done(error.message))"""
    for number, child in enumerate(net.front):
        scores = browser.execute_async_script(script, number, images.reshape(-1).tolist())
        np.testing.assert_allclose(
            np.reshape(scores, (3, 10)), net(images, child), atol=1e-4, rtol=1e-4
        )


def test_weights_of_8_bits_and_several_sizes(browser: Any, page: Path, several_sizes: Run) -> None:
    export_bundle(several_sizes, page / "other.joslim", int8=True)
    net = joslim_runtime.open(page / "other.joslim")
    image = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    script = """
        const [pixels, done] = arguments;
        const scores = async () => {
            const response = await fetch("other.joslim");
            const net = new Network(await openBundle(await response.arrayBuffer()));
            const found = [];
            for (const child of net.manifest.children) {
                const own = resized(pixels, net.manifest.shape, net.shape(child));
                found.push([...(await net.scores(child, new Float32Array(own)))]);
            }
            return found;
        };
        scores().then(done, (error) => done(error.message))"""
    found = browser.execute_async_script(script, image.reshape(-1).tolist())
    expected = [net(image, child)[0] for child in net.front]
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)
    assert len({child.shape for child in net.front}) > 1


def test_images_are_prepared_as_in_python(browser: Any, page: Path) -> None:
    from joslim_runtime.bundle import Bundle
    from joslim_runtime.images import prepared

    pixels = np.random.default_rng(0).integers(0, 256, (21, 34, 4), np.uint8)
    pixels[..., 3] = 255
    script = """
        const [width, height, data] = arguments;
        return [...prepared({ width, height, data }, view.net.manifest)]"""
    found = browser.execute_script(script, 34, 21, pixels.reshape(-1).tolist())
    expected = prepared(pixels, Bundle(page / "net.joslim").manifest)
    np.testing.assert_allclose(np.reshape(found, expected.shape), expected, atol=1e-5)


def test_draw_and_move_the_slider(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    net = joslim_runtime.open(page / "net.joslim")
    assert text(browser, "class") == NOTHING
    pad = browser.find_element("id", "pad")
    actions = ActionChains(browser, duration=10).move_to_element_with_offset(pad, 0, -90)
    actions.click_and_hold().move_by_offset(0, 90).move_by_offset(0, 90).release().perform()
    wait(browser)
    drawn = browser.execute_script(
        "const image = currentImage(); return [image.height, image.width, [...image.data]]"
    )
    image = np.array(drawn[2], np.uint8).reshape(drawn[0], drawn[1], 4)
    shown = set()
    for number in (0, len(net.front) - 1):
        move_slider(browser, number)
        net.use(net.front[number])
        name, share = net.classify(image)
        assert text(browser, "class") == name
        assert f"{100 * share:.0f} %" in text(browser, "classes")
        assert text(browser, "child") == f"Child {number + 1} of {len(net.front)}"
        assert text(browser, "time").endswith(" ms")
        assert float(text(browser, "time").removesuffix(" ms")) > 0
        counts = [line for line in text(browser, "layers").splitlines() if " / " in line]
        channels = zip(net.front[number].channels, net.dims)
        assert counts == [f"{count} / {full}" for count, (_, full) in channels]
        shown.add(text(browser, "figures"))
    assert len(shown) == 2
    browser.find_element("id", "clear").click()
    wait(browser)
    assert text(browser, "class") == NOTHING


def test_open_an_image(browser: Any, page: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (30, 20, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    browser.find_element("id", "file").send_keys(str(tmp_path / "photo.png"))
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda b: b.execute_script("return Boolean(view.photo)"))
    wait(browser)
    net = joslim_runtime.open(page / "net.joslim")
    move_slider(browser, len(net.front) - 1)
    assert text(browser, "class") == net.classify(pixels)[0]


# The npm package


def package_of(folder: Path, names: tuple[str, ...] = RUNTIME) -> Path:
    path = folder / "package.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(f"package/dist/{name}")
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
    return path


def test_a_package_given_by_its_path(tmp_path: Path) -> None:
    copy_runtime(package_of(tmp_path), tmp_path / "a")
    (tmp_path / "dist").mkdir()
    for name in RUNTIME:
        (tmp_path / "dist" / name).write_bytes(b"abc")
    copy_runtime(tmp_path, tmp_path / "b")
    copy_runtime(tmp_path / "dist", tmp_path / "c")
    for folder in "abc":
        assert [(tmp_path / folder / name).read_bytes() for name in RUNTIME] == [b"abc"] * 3


@pytest.mark.parametrize("kind", ["missing", "text", "incomplete", "folder"])
def test_no_package(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "package"
    if kind == "text":
        path.write_text("something")
    elif kind == "incomplete":
        path = package_of(tmp_path, RUNTIME[:2])
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(UserError, match="is no package of onnxruntime-web") as caught:
        copy_runtime(path, tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_no_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOSLIM_DATA", str(tmp_path))
    monkeypatch.setattr(demo_page.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"npm is needed .* type --onnxruntime-web PATH"):
        downloaded()


def test_another_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOSLIM_DATA", str(tmp_path))
    (tmp_path / demo_page.ARCHIVE).write_bytes(b"something else")
    with pytest.raises(UserError, match="differs from its checksum; remove it"):
        downloaded()
