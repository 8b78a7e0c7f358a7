"""Fetching and reading archives of a package index; pip runs without network on a folder of files."""

import hashlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from hwh_core.data.archives import _selection, cached_name, fetch_pypi_file, read_members
from hwh_core.data.errors import DataError

METADATA = "Metadata-Version: 2.1\nName: sampletext\nVersion: 1.0\nRequires-Python: >=2.6,<3\n"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_wheel(folder: Path, filename: str) -> Path:
    path = folder / filename
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sampletext/a.txt", "Text of a.\n")
        archive.writestr("sampletext-1.0.dist-info/METADATA", METADATA)
        archive.writestr("sampletext-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr("sampletext-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip takes as its only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.parametrize(
    "filename",
    [
        "sampletext-1.0-py3-none-any.whl",
        "sampletext-1.0-cp311-abi3-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    ],
)
def test_a_wheel_of_any_python_and_platform_is_fetched_once(index, tmp_path, filename, monkeypatch):
    digest = sha256(make_wheel(index, filename))
    path = fetch_pypi_file("sampletext", "1.0", filename, digest, tmp_path / "downloads")
    assert path.name == cached_name(filename, digest)
    assert sha256(path) == digest
    assert [name for name, _ in read_members(path, ["sampletext/*.txt"])] == ["sampletext/a.txt"]
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert fetch_pypi_file("sampletext", "1.0", filename, digest, tmp_path / "downloads") == path
    assert [entry.name for entry in (tmp_path / "downloads").iterdir()] == [path.name]


def test_the_named_wheel_is_taken_among_several(index, tmp_path):
    for filename in ("sampletext-1.0-cp311-cp311-win_amd64.whl", "sampletext-1.0-py3-none-any.whl"):
        make_wheel(index, filename)
    wanted = index / "sampletext-1.0-cp311-cp311-win_amd64.whl"
    path = fetch_pypi_file("sampletext", "1.0", wanted.name, sha256(wanted), tmp_path / "downloads")
    assert path.name.endswith(wanted.name)


def test_wrong_sha256_is_refused_and_nothing_stays(index, tmp_path):
    wheel = make_wheel(index, "sampletext-1.0-py3-none-any.whl")
    downloads = tmp_path / "downloads"
    with pytest.raises(DataError) as caught:
        fetch_pypi_file("sampletext", "1.0", wheel.name, "0" * 64, downloads)
    message = str(caught.value)
    assert sha256(wheel) in message
    assert "0" * 64 in message
    assert "sha256 in the config" in message
    assert "\n" not in message
    assert list(downloads.iterdir()) == []


def test_a_damaged_cached_file_is_fetched_anew(index, tmp_path):
    wheel = make_wheel(index, "sampletext-1.0-py3-none-any.whl")
    digest = sha256(wheel)
    path = fetch_pypi_file("sampletext", "1.0", wheel.name, digest, tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert sha256(fetch_pypi_file("sampletext", "1.0", wheel.name, digest, tmp_path)) == digest


def test_what_a_killed_download_left_goes_with_the_next_one(index, tmp_path):
    wheel = make_wheel(index, "sampletext-1.0-py3-none-any.whl")
    name = cached_name(wheel.name, sha256(wheel))
    (tmp_path / f".{name}.pip" / "files").mkdir(parents=True)
    (tmp_path / f".{name}.pip" / "files" / "half.whl").write_bytes(b"half")
    (tmp_path / f".{name}.fetch").touch()
    (tmp_path / f".{name}.tmp.whl").write_bytes(b"half")
    fetch_pypi_file("sampletext", "1.0", wheel.name, sha256(wheel), tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path != index] == [name]


def test_a_package_that_is_not_there_ends_in_one_sentence(index, tmp_path):
    with pytest.raises(DataError, match=r"sampletext 2\.0: pip could not fetch") as caught:
        fetch_pypi_file("sampletext", "2.0", "sampletext-2.0-py3-none-any.whl", "1" * 64, tmp_path / "downloads")
    assert "\n" not in str(caught.value)


def test_an_sdist_is_fetched_without_installing(index, tmp_path):
    backend = (
        "import os\n"
        "def prepare_metadata_for_build_wheel(folder, config_settings=None):\n"
        "    os.mkdir(os.path.join(folder, 'sampletext-1.0.dist-info'))\n"
        "    with open(os.path.join(folder, 'sampletext-1.0.dist-info', 'METADATA'), 'w') as f:\n"
        "        f.write('Metadata-Version: 2.1\\nName: sampletext\\nVersion: 1.0\\n')\n"
        "    return 'sampletext-1.0.dist-info'\n"
        "def build_wheel(*args, **kwargs):\n"
        "    raise SystemExit('must not be built')\n"
    )
    files = {
        "sampletext-1.0/PKG-INFO": "Metadata-Version: 2.1\nName: sampletext\nVersion: 1.0\n",
        "sampletext-1.0/pyproject.toml": (
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        ),
        "sampletext-1.0/backend.py": backend,
        "sampletext-1.0/docs/guide.txt": "A guide.\n",
    }
    sdist = index / "sampletext-1.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    path = fetch_pypi_file("sampletext", "1.0", sdist.name, sha256(sdist), tmp_path / "downloads")
    assert list(read_members(path, ["*/docs/*.txt"])) == [("sampletext-1.0/docs/guide.txt", b"A guide.\n")]


@pytest.mark.parametrize("filename", ["sampletext.exe", "sampletext-1.0-any.whl", "sampletext-1.0-?-none-any.whl"])
def test_other_file_names_are_refused(filename):
    with pytest.raises(DataError, match="filename"):
        _selection("sampletext", filename)


def test_a_filename_cannot_leave_the_folder(tmp_path):
    with pytest.raises(DataError, match="plain file name"):
        fetch_pypi_file("sampletext", "1.0", "../sampletext-1.0-py3-none-any.whl", "0" * 64, tmp_path)


@pytest.mark.parametrize(
    "name", ["../outside.txt", "/etc/outside.txt", "a/../../outside.txt", "C:/outside.txt", "a\\b"]
)
def test_unsafe_member_names_are_refused_even_if_not_wanted(tmp_path, name):
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("good.txt", "fine")
        info = zipfile.ZipInfo("placeholder")
        info.filename = name
        archive.writestr(info, "bad")
    with pytest.raises(DataError, match="unsafe member name"):
        list(read_members(path, ["good.txt"]))


def test_links_are_refused(tmp_path):
    zipped = tmp_path / "link.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        info = zipfile.ZipInfo("link.txt")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/hostname")
    tarred = tmp_path / "link.tar.gz"
    with tarfile.open(tarred, "w:gz") as archive:
        info = tarfile.TarInfo("link.txt")
        info.type = tarfile.SYMTYPE
        info.linkname = "/etc/hostname"
        archive.addfile(info)
    for path in (zipped, tarred):
        with pytest.raises(DataError, match="is a link"):
            list(read_members(path, ["*.txt"]))


def test_damaged_missing_and_unfitting_archives(tmp_path):
    wheel = make_wheel(tmp_path, "sampletext-1.0-py3-none-any.whl")
    with pytest.raises(DataError, match=r"no member fits '\*\.rst'"):
        list(read_members(wheel, ["sampletext/*.txt", "*.rst"]))
    with pytest.raises(DataError, match="does not exist"):
        list(read_members(tmp_path / "none.whl", ["*"]))
    data = wheel.read_bytes()
    start = data.index(b"Text of a.")
    wheel.write_bytes(data[:start] + b"Damaged!" + data[start + 8 :])
    with pytest.raises(DataError, match="damaged"):
        list(read_members(wheel, ["sampletext/*.txt"]))
    wheel.write_bytes(b"no archive at all")
    with pytest.raises(DataError, match="neither a wheel"):
        list(read_members(wheel, ["*"]))
