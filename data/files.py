"""Write files so that a crash leaves all of the new content or all of the old, never a part; lock folders."""

import fcntl
import os
import platform
import time
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

    An error, such as a full disk, leaves what was at `path` before and removes the temporary file.
    """
    path = Path(path)
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
    Raises DataError, which says who holds the lock, if another process has it, or why the folder cannot be made.
    """
    path, locked = Path(folder, name), False
    try:
        while not locked:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(path, "a+", encoding="utf-8")
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):  # the holder before may have deleted the folder in between
                locked = os.path.samestat(os.fstat(file.fileno()), path.stat())
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise DataError(f"{folder} is in use by {holder}: wait for it, stop it, or give another folder") from None
    except OSError as error:
        raise DataError(f"{folder} cannot be written ({error.strerror}): give another folder") from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}, which started at {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    file.flush()
    return file


def is_locked(folder):
    """Whether a process holds the lock of a folder, which may be missing."""
    try:
        with open(Path(folder) / "lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
