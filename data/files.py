"""Write files so that a crash leaves all of the new content or all of the old, never a part."""

import os
from pathlib import Path


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
    partial = path.with_name(path.name + ".partial")
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
