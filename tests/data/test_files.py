"""Writing a file whole, and locking a folder."""

import errno
import fcntl
import os
import stat
import threading

import pytest

from data.files import is_locked, lock_folder, write_whole
from errors import DataError


def test_what_is_not_a_regular_file_is_written_directly(tmp_path):
    """As root, a rename would replace a device. A link is replaced, not followed."""
    os.mkfifo(tmp_path / "pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_whole(tmp_path / "pipe", lambda file: file.write(b"text"))
    reader.join()
    assert received == [b"text"] and stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)

    (tmp_path / "other").write_text("other")
    (tmp_path / "link").symlink_to("other")
    write_whole(tmp_path / "link", lambda file: file.write(b"text"))
    assert (tmp_path / "other").read_text() == "other" and (tmp_path / "link").read_text() == "text"
    assert sorted(os.listdir(tmp_path)) == ["link", "other", "pipe"]


def test_a_second_process_is_told_who_holds_the_lock(tmp_path):
    with lock_folder(tmp_path / "run"):
        assert is_locked(tmp_path / "run")
        with pytest.raises(DataError, match=f"in use by process {os.getpid()} on"):
            lock_folder(tmp_path / "run")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        lock_folder(tmp_path / "file")
    assert not is_locked(tmp_path / "run") and not is_locked(tmp_path / "nowhere")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch, number):
    def fail(file, kind):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.warns(UserWarning, match="its file system has no locks"), lock_folder(tmp_path):
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()}")
    with pytest.warns(UserWarning, match="no locks"):
        assert not is_locked(tmp_path)
