"""The two errors that a user can cause, and output that cannot cause any.

Scripts print the message of a DataError, of which Damaged is one kind, and exit with status 1.
"""

import difflib
import os
import signal
import sys
import warnings
from contextlib import contextmanager, suppress
from importlib.util import find_spec


def report_ctrl_c(kind, error, trace):
    """Say that Ctrl-C has ended this process, instead of a traceback; a shell sees the status 130.

    train.py saves first: see `stop_signals`.
    """
    if issubclass(kind, KeyboardInterrupt):
        print("\nstopped by Ctrl-C", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = report_ctrl_c

# Scripts import this module before others need these packages, or a newer Python.
if sys.version_info < (3, 10):
    sys.exit(
        f"Python {sys.version.split()[0]} is too old: make the environment with 3.10 or a newer one, such as "
        "python3.12 -m venv .venv (README, Quick start)"
    )
if all(map(find_spec, ("numpy", "tiktoken", "torch", "tqdm"))):
    from tqdm import tqdm
else:
    sys.exit(
        "PyTorch or another package is missing here: activate the environment (. .venv/bin/activate), or make it: "
        "python3 -m venv .venv && . .venv/bin/activate && pip install -r requirements.txt (README, Quick start)"
    )


class DataError(ValueError):
    """Bad input. The message says which value, what was expected, and what to do."""


class Damaged(DataError):
    """A file that cannot be trusted. The message names the file and the fault."""


@contextmanager
def exit_with_message():
    """Make a DataError or an OSError end this process with its message instead of a traceback. Decorates a main()."""
    protect_output()
    if "\\udc" in repr(sys.argv):  # a byte of a name that is not UTF-8, which torch cannot open
        sys.exit(f"{sys.argv[1:]}: a name is not UTF-8: give another one")
    try:
        yield
    except DataError as error:
        sys.exit(error)
    except OSError as error:  # of a full disk, it names no file
        sys.exit(f"{error}. Fix this, and repeat the command")


def nearest(word, words):
    """Return " Did you mean ...?" for the end of a message about an unknown word; "" if no known word is like it."""
    for near in difflib.get_close_matches(word, words, 1):
        return f" Did you mean {near!r}?"
    return ""


class Output:
    """Standard output or error, without their failures: a closed terminal, a dead pipe or a full disk stops nothing."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        with suppress(OSError):
            self.stream.write(text)
            if "\n" in text:  # a reader of a log should not have to wait
                self.stream.flush()

    def flush(self):
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name):
        return getattr(self.stream, name)


def protect_output():
    """Make what this process prints from now on unable to stop it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before Python started
            stream = open(os.devnull, "w")
        with suppress(AttributeError, OSError):  # it is no file of Python, or fails already
            stream.reconfigure(errors="backslashreplace")  # what its encoding lacks
        if not isinstance(stream, Output):
            setattr(sys, name, Output(stream))


def show(function, *args):
    """Call a function whose failure must not stop a run: one that prints or draws, above all. If it fails, warn."""
    try:
        function(*args)
    except (Exception, SystemExit) as error:
        warnings.warn(f"{getattr(function, '__name__', 'output')} failed and is left out: {error!r}")


def stop_signals():
    """Return a list that collects, from now on, the signals that ask this process to stop.

    They are SIGTERM, SIGINT (Ctrl-C), SIGUSR1 (Slurm can send it) and SIGHUP. Ignored ones stay so, as under nohup.
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
    """A file for a progress bar in a log: each time that the bar is drawn becomes a line of standard error."""

    def write(self, text):
        if text.strip():  # not when it is cleared
            print(text.strip(), file=sys.stderr)


def progress(*args, **options):
    """Return a tqdm progress bar, with its arguments, on a terminal; in a log it is a line each minute."""
    if sys.stderr.isatty():
        return tqdm(*args, **options, dynamic_ncols=True)
    line = "{desc} {n_fmt}/{total_fmt} {unit}, {elapsed}, about {remaining} left, {rate_fmt}{postfix}"
    each_minute = dict(bar_format=line, mininterval=60, maxinterval=60, delay=60, leave=False, file=LogLines())
    return tqdm(*args, **options | each_minute)
