"""The command line: ``xpgrad COMMAND``, or ``python -m xpgrad COMMAND``."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from . import __version__
from .cli.checkout import ToolMissingError
from .cli.console import message

# Only the requested command's module is imported, so each command starts fast.
_COMMANDS = {
    "demo": "train an LSTM on text, or a GRU on sunspot numbers, in plain NumPy and in PyTorch",
    "check": "check every kernel's gradients on what is installed here",
    "vectors": "write inputs and gradients for the tests of other people's kernels",
    "bench": "time every kernel, its peers, and the limits of the machine (in a checkout)",
    "info": "show versions, engines, BLAS libraries, threads, and what would be faster",
    "warm": "compile kernels ahead, for an image or before a job",
    "onnx": "look into an ONNX file: what can be trained, and what not and why",
}
_INTERRUPTED = 130  # a shell's status for a program that Ctrl-C ended


def _parser(chosen: str | None) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser, ModuleType | None]:
    """The parser, the chosen command's parser (else the first again), and the command's module."""
    program = "xpgrad" if Path(sys.argv[0]).stem == "xpgrad" else "python -m xpgrad"
    parser = argparse.ArgumentParser(
        prog=program,
        description="xpgrad: gradient kernels written once against the Python array API standard.",
        epilog=f"Run '{program} COMMAND --help' for a command's options.",
    )
    parser.add_argument("--version", action="version", version=f"xpgrad {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    command, module = parser, None
    for name, summary in _COMMANDS.items():
        if name == chosen:
            module = importlib.import_module(f".cli.{name}", __package__)
            command = commands.add_parser(
                name,
                help=summary,
                description=module.__doc__,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            module.add_arguments(command)
        else:
            commands.add_parser(name, help=summary)
    return parser, command, module


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments without the program's name; by default the process's arguments.

    Returns
    -------
    int
        0 for success, 1 if the command failed or found an error, 2 for a wrong environment variable or if it
        needs a checkout and this is none, 130 after Ctrl-C. Arguments that do not parse raise SystemExit(2),
        as in argparse.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    try:
        parser, command, module = _parser(chosen)
        if not arguments:
            parser.print_help(sys.stderr)
            return 2
        args, unknown = parser.parse_known_args(arguments)
        if unknown:  # parse_args would show the usage without the command's
            command.error(f"unrecognized arguments: {' '.join(unknown)}")
        if module is None:  # only options, no command
            parser.error("a command is needed")
        return int(module.run(args))
    except KeyboardInterrupt:
        print(file=sys.stderr)  # leave the line with the terminal's ^C
        message("interrupted")
        return _INTERRUPTED
    except ToolMissingError as error:
        message(str(error))
        return 2
    except ValueError as error:
        if not str(error).startswith("XPGRAD_"):
            raise
        message(str(error))  # of an environment variable, not a fault of the program
        return 2
    except BrokenPipeError:  # the reader (head, less) is gone: no error
        # Python would report it again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
