"""The two errors that a user can cause. Scripts print their message and exit with status 1."""


class DataError(ValueError):
    """Bad input. The message says which value, what was expected, and what to do."""


class Damaged(Exception):
    """A file that cannot be trusted. The message names the file and the fault."""
