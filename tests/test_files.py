import errno
import os
from pathlib import Path

import pytest

from adawac.config import TrainConfig
from adawac.errors import MissingFileError, RunError
from adawac.files import AppendFile, beside, explained, is_temporary, make_folder, write_text
from adawac.runs import RunWriter


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_text(path, "one\r\nβ\n")
    assert path.read_bytes() == "one\r\nβ\n".encode()
    with beside(path) as temporary:
        temporary.write_text("two")
        assert path.read_bytes() == "one\r\nβ\n".encode()
        assert is_temporary(temporary)
        assert temporary.parent == path.parent
    assert path.read_text() == "two"
    assert [file.name for file in path.parent.iterdir()] == ["file.txt"]
    assert not is_temporary(path)


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def interrupted() -> None:
        with beside(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_rename_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_somebody_reads_is_replaced_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows refuses to replace an open file."""
    path = tmp_path / "file.txt"
    write_text(path, "old")
    refusals = iter([True, True])

    def refuse(old: object, new: object, real=os.replace) -> None:
        if next(refusals, False):
            raise PermissionError(errno.EACCES, "The file is in use", str(new))
        real(old, new)

    monkeypatch.setattr(os, "replace", refuse)
    write_text(path, "new")
    assert path.read_text() == "new"
    monkeypatch.setattr("adawac.files._PATIENCE", 0.0)
    refusals = iter([True, True, True])
    with pytest.raises(PermissionError, match="in use"):
        write_text(path, "newer")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_append_file_keeps_whole_records_only(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    with AppendFile(path, length=4) as log:
        assert path.read_bytes() == b"one\n"
        log.append(b"two\n")
        log.append(b"three\n")
        log.cut(8)
        log.append(b"3\n")
        assert path.read_bytes() == b"one\ntwo\n3\n"
        assert log.length == 10


def test_what_an_append_could_not_cut_off_the_next_one_does(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with AppendFile(path, length=0) as log:
        log.append(b"one\n")
        with path.open("ab") as other:
            other.write(b"tw")
        log.append(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_an_append_that_fails_is_cut_off_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    with AppendFile(path, length=0) as log:
        log.append(b"one\n")
        broken = True

        def fsync(descriptor: int, real=os.fsync) -> None:
            if broken:
                raise OSError(errno.EIO, "Input/output error")
            real(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="Input/output"):
            log.append(b"two\n")
        broken = False
        assert path.read_bytes() == b"one\n"
        log.append(b"three\n")
    assert path.read_bytes() == b"one\nthree\n"


def test_a_file_in_the_place_of_a_folder_is_said_to_be_one(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="it is a file"):
        make_folder(tmp_path / "file")
    with pytest.raises(RunError, match=r"Expected to write to .*file, but got: it is a file\."):
        RunWriter(tmp_path / "file", TrainConfig())


def test_what_could_not_be_written_is_said_with_what_to_do() -> None:
    with (
        pytest.raises(RunError, match=r"^Expected to write scores, but got: No space left on device\. Make room\.$"),
        explained(RunError, "scores", "Make room."),
    ):
        raise OSError(28, "No space left on device")
    explained_already = MissingFileError("Expected a file, but there is none. Give one.")  # an OSError, too
    with pytest.raises(MissingFileError) as caught, explained(RunError, "scores", "Make room."):
        raise explained_already
    assert caught.value is explained_already
    with pytest.raises(ZeroDivisionError), explained(RunError, "scores", "Make room."):
        raise ZeroDivisionError
