"""The two errors that a user can cause, and a hint for their messages. Scripts print the message and exit with status 1."""

import difflib


class DataError(ValueError):
    """Bad input. The message says which value, what was expected, and what to do."""


class Damaged(Exception):
    """A file that cannot be trusted. The message names the file and the fault."""


def nearest(word, words):
    """Return " Did you mean ...?" for the end of a message about an unknown word; "" if no known word is like it."""
    return "".join(f" Did you mean {near!r}?" for near in difflib.get_close_matches(word, words, 1))
