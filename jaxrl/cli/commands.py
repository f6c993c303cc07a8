"""Parses the command line and runs its command, which is one file here, with `add_flags` and `run`, and one line below.

`run` returns the exit code where it is not 0. The file of a command is imported when that command is given, so that
`jaxrl --help` comes at once.

No JAX at the top of these files: a spawned environment process imports the main module again.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from jaxrl import trust
from jaxrl.near_names import unknown
from jaxrl.types import JaxrlError

_COMMANDS = {
    "train": "train the behaviors of an environment",
    "learn": "the same with the arguments of mlagents-learn, for projects that come from it",
    "sweep": "train every combination of some settings, with several seeds each",
    "init": "list the configurations that come with jaxrl, and write one to change",
    "upgrade-config": "configuration files of before ML-Agents 0.18 as one of today",
    "check-env": "play an environment at random and name what breaks its contract",
    "make-player": "write an executable that serves one of jaxrl's environments as a Unity player would",
    "watch": "play an environment with the policy of a run and make a film of it",
    "tournament": "policies of runs, their earlier selves and others play against each other, and are rated",
    "dashboard": "a page on this machine that follows the runs in a results folder while they train",
    "report": "learning curves, tables and time split of runs in one file",
    "diff": "the first difference between two runs: settings, versions, statistics, parameters",
    "record": "play the policy of a run and write what it does as demonstrations",
    "imitate": "train from demonstrations alone, without an environment",
    "demo": "what is in demonstrations: lines, tables, films, and other formats",
    "zoo": "the trained policies that come with jaxrl: list them, and see what they earn",
    "import-torch": "a run of jaxrl from a checkpoint of ML-Agents (.pt), to continue or to start from",
    "export-torch": "a checkpoint of ML-Agents (.pt) from a run of jaxrl",
    "push-to-hf": "a run as a repository of the Hugging Face Hub, with a model card",
    "load-from-hf": "a run, of jaxrl or ML-Agents, from the Hugging Face Hub",
    "doctor": "whether this machine, and an environment, are fit for training, and what to do where not",
    "completion": "what a shell needs to complete jaxrl's commands and flags",
    "plugins": "list what configurations can name, of jaxrl and of installed packages",
    "onnx": "what Unity would say of a model",
    "bench": "run the benchmarks, compare two files of their numbers, follow them over commits",
}
"""Help text of each command by name; its file is cli/NAME.py, with _ for -."""
_LIKE_THE_ORIGINAL = ("train", "learn")
"""Commands whose flags may be abbreviated, as with `mlagents-learn`."""
TAKES_THE_REST = "--env-args"
"""Flag whose value is the rest of the line, which jaxrl does not read."""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command and its flags. A usage error exits with 2."""
    given = sys.argv[1:] if argv is None else list(argv)
    trust.ours(given)
    parser, chosen = _parser(given[0] if given else None)
    if chosen is not None and given[0] in _LIKE_THE_ORIGINAL:
        from jaxrl.cli.flags import MLAGENTS_FLAGS

        given[1:] = expanded(given[1:], chosen.flags, MLAGENTS_FLAGS, chosen.error)
    if chosen is None:
        if given and not given[0].startswith("-"):
            parser.error(unknown(given[0], given[0], _COMMANDS, what="no such command"))
        return parser.parse_args(given)
    mixed = chosen.mixed
    arguments, rest = chosen.parse_known_intermixed_args(given[1:]) if mixed else parser.parse_known_args(given)
    if rest:
        chosen.error(unrecognized(rest, chosen.flags))
    return arguments


_NO_MEMORY = (
    "the memory of the device is full ({}): lower num_areas, seeds, buffer_size, batch_size or hidden_units; if "
    "another program has the GPU, end it, or start both with XLA_PYTHON_CLIENT_PREALLOCATE=false: JAX takes three "
    "quarters of a GPU at its start. What a run has saved is good."
)


def _of_memory(error: RuntimeError) -> bool:
    """Return whether JAX ran out of device memory at its start, in compilation or computation, without importing it."""
    return type(error).__name__ == "JaxRuntimeError" and any(
        text in str(error) for text in ("RESOURCE_EXHAUSTED", "Out of memory", "Ran out of memory", "OUT_OF_MEMORY")
    )


def run(given: argparse.Namespace) -> int:
    """Run the command and return the exit code.

    An error that the user can mend is one message on stderr, with a traceback only under --debug.
    """
    try:
        return given.command(given) or 0
    except JaxrlError as error:
        if getattr(given, "debug", False):
            traceback.print_exc()
        print(error, file=sys.stderr)
        return 1
    except RuntimeError as error:
        if not _of_memory(error) or getattr(given, "debug", False):
            raise
        print(_NO_MEMORY.format(str(error).partition("\n")[0]), file=sys.stderr)
        return 1
    except BrokenPipeError:  # `jaxrl init | head`: the reader has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


class _Version(argparse.Action):
    """Prints the versions, which are looked up when the flag is read."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from jaxrl.artifacts.versions import version_line

        print(version_line())
        parser.exit()


def whole_parser() -> FlagParser:
    """Return the parser with the flags of every command."""
    return _parser(*_COMMANDS)[0]


def _parser(*chosen: str | None) -> tuple[FlagParser, FlagParser | None]:
    """Return the parser with the flags of the chosen commands, and the parser of the last of them."""
    parser = FlagParser(
        prog="jaxrl", description="Train ML-Agents and JAX environments with MA-POCA, PPO and relatives."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the versions of all that counts, and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    last = None
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name in chosen:
            last = command
            module = import_module(f"jaxrl.cli.{name.replace('-', '_')}")
            module.add_flags(command)
            if "--debug" not in command.flags:
                command.add_argument("--debug", action="store_true", help="show tracebacks")
            command.set_defaults(command=module.run)
    return parser, last


class FlagParser(argparse.ArgumentParser):
    """A parser that lists its flags; it takes them in full alone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **options)

    @property
    def flags(self) -> Mapping[str, argparse.Action]:
        """Actions by flag, such as `--seed`, also those in a group."""
        return self._option_string_actions

    @property
    def mixed(self) -> bool:
        """Flags stand beside a list of any number of words: flags may stand between these."""
        any_number = any(not action.option_strings and action.nargs in ("*", "+") for action in self._actions)
        return any_number and not self.flags.keys() <= {"-h", "--help"}


def unrecognized(words: Sequence[str], flags: Collection[str]) -> str:
    """Return argparse's text for words that no parser took, with what stands for the first of them, or is like it."""
    from jaxrl.cli.flags import FORMER_FLAGS

    name = words[0].partition("=")[0]
    if name in FORMER_FLAGS and "--run-id" in flags:
        return f"{name} is a flag of ML-Agents before 0.18: now {FORMER_FLAGS[name]}"
    near = difflib.get_close_matches(name, flags, n=1)
    return f"unrecognized arguments: {' '.join(words)}" + (f" (did you mean {near[0]}?)" if near else "")


def expanded(
    words: Sequence[str], flags: Collection[str], first: Collection[str], error: Callable[[str], NoReturn]
) -> list[str]:
    """Return the words of a command line with every flag in full.

    An abbreviation of several flags means the one in `first`, so that abbreviations of ML-Agents are not ambiguous
    because of flags that only jaxrl has. `error` is called with the text of argparse where it is ambiguous.
    """
    full_words = list(words)
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word == "--":
            break
        if name.startswith("--") and name not in flags:
            name = _meant(name, flags, first, error)
            full_words[i] = name + equals + value
        if name == TAKES_THE_REST:
            break
    return full_words


def _meant(name: str, flags: Collection[str], first: Collection[str], error: Callable[[str], NoReturn]) -> str:
    matches = [flag for flag in flags if flag.startswith(name)]
    matches = [flag for flag in matches if flag in first] or matches
    if len(matches) > 1:
        error(f"ambiguous option: {name} could match {', '.join(matches)}")
    return matches[0] if matches else name
