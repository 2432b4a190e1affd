"""Write files so that a crash leaves all of the new content or all of the old, never a part; lock folders."""

import fcntl
import json
import os
import platform
import re
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

from errors import Damaged, DataError

# What Python raises for malformed content, such as JSON with other fields or nested far too deep.
MALFORMED = ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, OSError

# Files that are neither text nor a table nor a model, by their first bytes: what they are, and what to do.
FOREIGN = {
    rb"version https://git-lfs": "a Git LFS pointer: get the file itself (git lfs pull)",
    rb"\s*(?i:<!doctype html|<html)": "an HTML page, perhaps the error page of a download: get the file again",
    rb"%PDF-|\{\\rtf": "a PDF or RTF: save it as text",
    rb"PK\x03\x04|Rar!\x1a|7z\xbc\xaf": "an archive, such as a .docx or a file of torch.save: unpack it, "
    "or save it as text or safetensors",
    rb"\x80[\x02-\x05]": "a Python pickle, which may run code: save its texts as JSON lines, weights as safetensors",
    rb"\x1f\x8b|\x28\xb5\x2f\xfd|BZh[1-9]1AY|\xfd7zXZ": "compressed (gzip, zstd, bzip2 or xz): unpack it",
    rb"GGUF.\0": "a GGUF file: get the model in safetensors format",
    rb"ARROW1|\xff{4}": "an Arrow file: save it as parquet",
}
NOT_UTF8 = {
    rb"\xff\xfe|\xfe\xff": "UTF-16 or UTF-32: convert it (iconv -f UTF-16 -t UTF-8)",
    rb"[^\n]*\r[^\n]+\Z": "text with the line ends of an old Mac: convert it (tr '\\r' '\\n')",
    rb"(?s).{,300}(\0{4}|(.\0){4}|(\0.){4})": "binary, or UTF-16: convert it to UTF-8",
}


def foreign(head, kinds=FOREIGN | NOT_UTF8):
    """Return what a file with these first bytes is, and what to do, or "" if it may be text or a table."""
    for pattern, what in kinds.items():
        if re.match(pattern, head):
            return what
    return ""


def refuse_existing(path):
    """Raise DataError if there is something at this path. An empty path is the current folder."""
    path = Path(path)
    if os.path.lexists(path):
        raise DataError(f"{path} exists, and is not replaced: give another path")


def what_is(path, otherwise):
    """Return what a file is, by its content, and what to do. otherwise: the answer if its content is unknown."""
    if not path.is_file() or not path.stat().st_size:
        return "missing or empty: get the file again"
    with open(path, "rb") as file:
        return foreign(file.read(64), FOREIGN) or otherwise


@contextmanager
def refuse_malformed(what):
    """Turn the errors that malformed content causes into Damaged, whose message is `what` and the reason."""
    try:
        yield
    except DataError:
        raise
    except MALFORMED as error:
        raise Damaged(f"{what}: {type(error).__name__}: {error!s:.200}") from error


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
    file that it points to is written, and made if it is missing. A path that is no regular file, such as a pipe or a
    device, is written directly.
    """
    real = Path(os.path.realpath(path))
    if os.path.lexists(real) and not real.is_file():
        with open(path, "wb") as file:
            write(file)
        return
    partial = real.with_name(f"{real.name}.{os.getpid()}.partial")  # another process would use another name
    try:
        with open(partial, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, real)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(real.parent)  # so that the rename survives a power cut


def write_json(path, value):
    """Write plain values as JSON; see `write_whole`."""
    write_whole(path, lambda file: file.write(json.dumps(value, indent=1).encode()))


def lock_folder(folder, name="lock", shared=False):
    """Create a folder if it is missing and lock it for this process. Returns the open lock file: keep it open.

    The lock is an advisory `flock` on the file `name` in the folder, so it ends with the process, however that ends.
    With `shared`, other processes may share it. If the file system has no locks, it warns and goes on. Raises DataError
    if another process holds the lock, and says which, or if the folder cannot be written.
    """
    path = Path(folder, name)
    try:
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open_lock(path, "a+")
            if not flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
                holder = path.read_text(errors="replace").strip() or "another process"
                raise DataError(f"{folder} is in use by {holder}: wait for it, stop it, or give another folder")
            with suppress(FileNotFoundError):  # the last holder may have deleted the folder in between
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    break
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}, which started at {time.strftime('%F %T')}\n")
        file.flush()
    except OSError as error:
        raise DataError(f"{folder} cannot be written ({error.strerror}): give another folder") from None
    return file


def open_lock(path, mode):
    """Open a lock file. Raises DataError for a link, a pipe or a folder, which a lock never is, and OSError."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise DataError(f"{path} is not a lock file of this program: move it away, or give another folder")
    return open(path, mode, encoding="utf-8", errors="replace")


def flock(file, kind):
    """Return whether this process has locked an open file. Where the file system has no locks, warn and return True."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        warnings.warn(
            f"{file.name} cannot be locked, because its file system has no locks ({error.strerror}): "
            "start no second process on this folder"
        )
    return True


def is_locked(folder):
    """Return whether a process holds the lock of a folder, which may be missing."""
    try:
        with open_lock(Path(folder) / "lock", "r") as file:
            return not flock(file, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


# ----------------------------------------------------------------------------
# Models


def is_model(path):
    """Return whether a path is a hub model's folder. A run's folder has a config.json too, without model_type."""
    file = path / "config.json"
    return file.is_file() and b'"model_type"' in file.read_bytes()


def misfits(found, wanted):
    """Yield a sentence for each tensor that is missing, unexpected or of a wrong shape. Both are {name: tensor}."""
    for name in wanted | found:
        have = tuple(found[name].shape) if name in found else "nothing"
        want = tuple(wanted[name].shape) if name in wanted else "nothing"
        if have != want:
            yield f"{name}: {have}, expected {want}"
