"""Write files so that a crash leaves all of the new content or all of the old, never a part; lock folders."""

import errno
import fcntl
import os
import platform
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

    An error, such as a full disk, leaves what was at `path` before and removes the temporary file. What is there but is
    not a regular file, such as a pipe or /dev/stdout, is written directly.
    """
    path = Path(path)
    if path.exists() and (not path.is_file() or path.parent == Path("/dev")):
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


def lock_folder(folder, name="lock"):
    """Create a folder if it is missing and lock it for this process. Returns the open lock file: keep it open.

    The lock is an advisory `flock` on the file `name` in the folder, so it ends with the process, however that ends.
    Without locks in the file system, it warns and goes on. Raises DataError, which says who holds the lock, if another
    process has it, or why the folder cannot be made.
    """
    path, locked = Path(folder, name), False
    try:
        while not locked:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "a+", encoding="utf-8")
            if not flock(file, fcntl.LOCK_EX):
                file.seek(0)
                holder = file.read().strip() or "another process"
                file.close()
                raise DataError(f"{folder} is in use by {holder}: wait for it, stop it, or give another folder")
            with suppress(FileNotFoundError):  # the holder before may have deleted the folder in between
                locked = os.path.samestat(os.fstat(file.fileno()), path.stat())
        file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(f"process {os.getpid()} on {platform.node()}, which started at {started}\n")
        file.flush()
    except OSError as error:
        raise DataError(f"{folder} cannot be written ({error.strerror}): give another folder") from None
    return file


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
        with open(Path(folder) / "lock", "rb") as file:
            return not flock(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False
