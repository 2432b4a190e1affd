"""Errors with a message for the user, and output that cannot stop a run.

Scripts print the message of a DataError, or of its subclass Damaged, and exit with status 1.
"""

import difflib
import os
import signal
import sys
import warnings
from contextlib import contextmanager, suppress
from importlib.util import find_spec


def report_ctrl_c(kind, error, trace):
    """Print one line instead of a traceback when Ctrl-C ends this process. A shell sees status 130.

    train.py saves first: see `stop_signals`.
    """
    if issubclass(kind, KeyboardInterrupt):
        print("\nstopped by Ctrl-C", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = report_ctrl_c

# Scripts import this module first, so that a missing package or an old Python gets a clear message.
if sys.version_info < (3, 10):
    sys.exit(
        f"Python {sys.version.split()[0]} is too old: make the environment with Python 3.10 or newer, for "
        "example python3.12 -m venv .venv (README, Quick start)"
    )
if all(map(find_spec, ("numpy", "tiktoken", "torch", "tqdm"))):
    from tqdm import tqdm
else:
    sys.exit(
        "PyTorch or another package is missing: activate the environment (. .venv/bin/activate), or make it: "
        "python3 -m venv .venv && . .venv/bin/activate && pip install -r requirements.txt (README, Quick start)"
    )


class DataError(ValueError):
    """Bad input. The message says which value, what was expected, and what to do."""


class Damaged(DataError):
    """A file that cannot be trusted. The message names the file and the fault."""


@contextmanager
def exit_with_message():
    """Decorate a main(): a DataError or an OSError ends the process with its message instead of a traceback."""
    protect_output()
    if "\\udc" in repr(sys.argv):  # from a file name that is not UTF-8, which torch cannot open
        sys.exit(f"{sys.argv[1:]}: a name is not UTF-8: rename the file")
    try:
        yield
    except DataError as error:
        sys.exit(error)
    except OSError as error:  # a full disk, for example
        sys.exit(f"{error}. Fix this, and repeat the command")


def nearest(word, words):
    """Return " Did you mean ...?" for the end of a message about an unknown word, or "" if no known word is close."""
    for near in difflib.get_close_matches(word, words, 1):
        return f" Did you mean {near!r}?"
    return ""


class Output:
    """Wraps stdout or stderr and ignores failed writes: a closed terminal, a broken pipe or a full disk."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        with suppress(OSError):
            self.stream.write(text)
            if "\n" in text:  # so that lines appear in a log at once
                self.stream.flush()

    def flush(self):
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name):
        return getattr(self.stream, name)


def protect_output():
    """Wrap stdout and stderr, so that a failed print cannot stop this process."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before Python started
            stream = open(os.devnull, "w")
        with suppress(AttributeError, OSError):  # not one of Python's files, or already broken
            stream.reconfigure(errors="backslashreplace")  # for characters that its encoding lacks
        if not isinstance(stream, Output):
            setattr(sys, name, Output(stream))


def show(function, *args):
    """Call a function whose failure must not stop a run, such as one that prints or draws. If it fails, warn."""
    try:
        function(*args)
    except (Exception, SystemExit) as error:
        warnings.warn(f"{getattr(function, '__name__', 'output')} failed and is left out: {error!r}")


def stop_signals():
    """Return a list that collects, from now on, the signals that ask this process to stop.

    They are SIGTERM, SIGINT (Ctrl-C), SIGUSR1 (Slurm can send it) and SIGHUP. Ignored ones stay ignored (nohup).
    The same signal a second time stops the process at once.
    """
    received = []

    def on_signal(number, frame):
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, on_signal)
    return received


class LogLines:
    """A file object for a progress bar in a log: each update of the bar becomes a line on stderr."""

    def write(self, text):
        if text.strip():  # tqdm clears the bar with blanks
            print(text.strip(), file=sys.stderr)


def progress(*args, **options):
    """Return a tqdm progress bar with these arguments. In a log, it prints a line each minute instead."""
    if sys.stderr.isatty():
        return tqdm(*args, **options, dynamic_ncols=True)
    line = "{desc} {n_fmt}/{total_fmt} {unit}, {elapsed}, about {remaining} left, {rate_fmt}{postfix}"
    each_minute = dict(bar_format=line, mininterval=60, maxinterval=60, delay=60, leave=False, file=LogLines())
    return tqdm(*args, **options | each_minute)
