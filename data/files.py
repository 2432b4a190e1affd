"""Write files so that a crash leaves all of the new content or all of the old, never a part; lock folders."""

import errno
import fcntl
import os
import platform
import stat
import time
import warnings
from contextlib import suppress
from pathlib import Path

from errors import DataError

# What Python raises about content that is not as expected, such as JSON of another shape or far too deep.
MALFORMED = ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, OSError


def sync(path):
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path, write):
    """Call `write(file)` on a temporary file beside `path`, sync it, and rename it to `path`.

    An error, such as a full disk, leaves what was at `path` before and removes the temporary file. A link stays: the
    file that it names is written, and made if it is missing. What is there but is not a regular file, such as a pipe or
    /dev/stdout, is written directly.
    """
    path = Path(path)
    is_device = path.parent == Path("/dev")  # also /dev/stdout, where that is a file
    if not is_device:
        path = Path(os.path.realpath(path))
    if is_device or (os.path.lexists(path) and not path.is_file()):
        with open(path, "wb") as file:
            write(file)
        return
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # another process would use another name
    try:
        with open(partial, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)  # so that the rename survives a power cut


def lock_folder(folder, name="lock", shared=False):
    """Create a folder if it is missing and lock it for this process. Returns the open lock file: keep it open.

    The lock is an advisory `flock` on the file `name` in the folder, so it ends with the process, however that ends.
    With `shared`, other processes may share it. Without locks in the file system, it warns and goes on. Raises
    DataError, which says who holds the lock, if another process has it, or why the folder cannot be locked.
    """
    path = Path(folder, name)
    try:
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open_lock(path, "a+")
            if not flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
                file.seek(0)
                holder = file.read().strip() or "another process"
                file.close()
                raise DataError(f"{folder} is in use by {holder}: wait for it, stop it, or give another folder")
            with suppress(FileNotFoundError):  # the holder before may have deleted the folder in between
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    break
        file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(f"process {os.getpid()} on {platform.node()}, which started at {started}\n")
        file.flush()
    except OSError as error:
        raise DataError(f"{folder} cannot be written ({error.strerror}): give another folder") from None
    return file


def open_lock(path, mode):
    """Open a lock file. Raises DataError for a link, a pipe or a folder, which a lock never is, and OSError."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise DataError(f"{path} is no file that this program made: move it away, or give another folder")

    def opener(path, flags):
        return os.open(path, flags | os.O_NOFOLLOW, 0o666)  # should it be made a link just now

    return open(path, mode, encoding="utf-8", errors="replace", opener=opener)


def flock(file, kind):
    """Return whether this process has locked an open file. Where the file system has no locks, warn and return True."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        why = f"its file system has no locks ({error.strerror})"
        warnings.warn(f"{file.name} cannot be locked, because {why}: start no second process on this folder")
    return True


def is_locked(folder):
    """Whether a process holds the lock of a folder, which may be missing."""
    try:
        with open_lock(Path(folder) / "lock", "r") as file:
            return not flock(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False
