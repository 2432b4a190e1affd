"""Writing a file whole, and locking a folder."""

import errno
import fcntl
import os
from functools import partial

import pytest

from data.files import is_locked, lock_folder, write_whole
from errors import DataError


@pytest.mark.parametrize("target", ["folder/there", "folder/missing", "second", "/dev/null"])
def test_a_link_is_followed_and_a_pipe_is_written_directly(tmp_path, target):
    """To a file, to one that is missing, through another link, and to a device."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/there").write_text("old")
    (tmp_path / "second").symlink_to("folder/there")
    (tmp_path / "link").symlink_to(target)
    write_whole(tmp_path / "link", lambda file: file.write(b"new"))
    assert os.readlink(tmp_path / "link") == target and (tmp_path / "second").is_symlink()
    assert (tmp_path / "link").read_bytes() == (b"" if target == "/dev/null" else b"new")
    assert {*os.listdir(tmp_path / "folder")} <= {"there", "missing"}
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", lambda file: file.write(b"text"))
    assert os.read(reader, 9) == b"text" and (tmp_path / "pipe").is_fifo()


def test_a_lock_is_a_file(tmp_path):
    """What has its name is neither emptied, made nor waited for: a pipe, a folder, a link, also one to nothing."""
    lock = tmp_path / "run" / "lock"
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("content")
    for make in os.mkfifo, os.mkdir, partial(os.symlink, "../precious"), partial(os.symlink, "../missing"):
        make(lock)
        with pytest.raises(DataError, match="lock is not a lock file of this program: move it away"):
            lock_folder(tmp_path / "run")
        lock.rename(tmp_path / "run" / f"{len(os.listdir(tmp_path / 'run'))}")
    assert sorted(os.listdir(tmp_path)) == ["precious", "run"]
    assert (tmp_path / "precious").read_text() == "content"


def test_a_second_process_is_told_who_holds_the_lock(tmp_path):
    with lock_folder(tmp_path / "run"):
        assert is_locked(tmp_path / "run")
        with pytest.raises(DataError, match=f"in use by process {os.getpid()} on"):
            lock_folder(tmp_path / "run")
    assert not is_locked(tmp_path / "run") and not is_locked(tmp_path / "nowhere")


def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch):
    def fail(file, kind):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.warns(UserWarning, match="its file system has no locks"), lock_folder(tmp_path):
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()}")
