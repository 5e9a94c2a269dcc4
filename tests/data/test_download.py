import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from joslim.data.download import (
    Archive,
    OfficialFile,
    archive_member,
    data_root,
    extract,
    official_file,
    verified,
)
from joslim.errors import UserError

CONTENT = b"some data " * 100_000
MD5 = hashlib.md5(CONTENT).hexdigest()
NOBODY = "http://127.0.0.1:9/file.bin"  # The port where everything is discarded.


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with one file."""
    monkeypatch.setenv("NO_PROXY", "*")
    served = tmp_path / "served"
    served.mkdir()
    (served / "file.bin").write_bytes(CONTENT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_a_file_is_fetched_once(site: str, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    root = tmp_path / "new" / "root"
    file = OfficialFile("folder/file.bin", site + "file.bin", MD5)
    path = official_file(file, root)
    assert path == root / "folder" / "file.bin"
    assert path.read_bytes() == CONTENT
    out, err = capfd.readouterr()
    assert out == ""
    assert "file.bin" in err
    unreachable = OfficialFile("folder/file.bin", NOBODY, MD5)
    assert official_file(unreachable, root) == path


@pytest.mark.parametrize("path", ["missing.bin", "file.bin"])
def test_failed_downloads_leave_nothing(site: str, tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    with pytest.raises(UserError) as caught:
        official_file(OfficialFile("file.bin", site + path, "0" * 32), root)
    said = str(caught.value)
    assert said.startswith(f"data-root: no file.bin in {root}, and fetching it failed (")
    assert site + path in said
    assert "--data-root" in said
    assert "\n" not in said
    assert not root.exists() or not list(root.iterdir())


def test_no_internet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    with pytest.raises(UserError, match=r"^data-root: .*ConnectionError.*put http://127.0.0.1:9/"):
        official_file(OfficialFile("file.bin", NOBODY, MD5), tmp_path)


def test_verified(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    assert verified(path, MD5) == path
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(UserError, match=r"^data: .*file.bin is not the official file \(md5 "):
        verified(path, MD5)
    with pytest.raises(UserError, match=r"^data: cannot read .*nothing: FileNotFoundError"):
        verified(tmp_path / "nothing", MD5)


def packed(path: Path, entries: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return path


def test_only_wanted_files_are_unpacked(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    entries = {"a/train": CONTENT, "a/other": b"x", "../outside": b"x", "/absolute": b"x"}
    path = packed(root / "a.tar.gz", entries)
    extract(path, ["a/train", "a/missing"], root)
    found = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"root/a.tar.gz", "root/a/train"}
    assert (root / "a/train").read_bytes() == CONTENT


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    path = packed(root / "a.tar.gz", {}, links={"train": "../secret"})
    extract(path, ["train"], root)
    assert not (root / "train").exists()


def test_members_of_an_archive(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.tar.gz", {"a/train": CONTENT})
    file = OfficialFile("a.tar.gz", NOBODY, hashlib.md5(path.read_bytes()).hexdigest())
    archive = Archive(file, {"a/train": MD5, "a/test": MD5})
    assert archive_member(archive, "a/train", tmp_path).read_bytes() == CONTENT
    with pytest.raises(UserError, match=r"^data: a.tar.gz in .* has no a/test; fetch it again"):
        archive_member(archive, "a/test", tmp_path)
    path.unlink()
    assert archive_member(archive, "a/train", tmp_path).exists(), "the archive is needed once"


def test_an_archive_that_is_cut_off(tmp_path: Path) -> None:
    content = packed(tmp_path / "whole.tar.gz", {"a/train": CONTENT}).read_bytes()
    path = tmp_path / "cut.tar.gz"
    for cut in (content[: len(content) // 2], b"", b"not an archive"):
        path.write_bytes(cut)
        with pytest.raises(UserError, match=r"^data: cannot unpack .*cut.tar.gz: \w+") as caught:
            extract(path, ["a/train"], tmp_path)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "a/train").exists()


def test_where_data_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOSLIM_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    assert data_root(None).name == "joslim"
    assert data_root("~/here") == tmp_path / "here"
    monkeypatch.setenv("JOSLIM_DATA", "/elsewhere")
    assert data_root(None) == Path("/elsewhere")
    assert data_root("/given") == Path("/given")
