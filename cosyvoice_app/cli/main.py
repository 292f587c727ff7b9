"""Finds the command, runs it, and turns errors into one plain line and an exit status.

Exit status: 0 all well, 1 the work failed, 2 the call or its input was wrong, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from cosyvoice_app import __version__
from cosyvoice_app.cli import batch, check_prompt, doctor, features, keys, normalize, synth, voices
from cosyvoice_app.console import make_safe, print_json
from cosyvoice_app.errors import AppError, BadInput, ConfigError, DeviceError, NotFound, TooLarge

FAILED, USAGE, STOPPED = 1, 2, 130

_COMMANDS = (synth, batch, normalize, check_prompt, voices, features, keys, doctor)
_USAGE_ERRORS = (BadInput, ConfigError, DeviceError, NotFound, TooLarge)


def main(argv: Sequence[str] | None = None) -> int:
    make_safe()
    arguments = list(sys.argv[1:] if argv is None else argv)
    # These two parse the rest themselves; they are wanted on machines where little else works yet.
    if arguments[:1] == ["assets"]:
        from cosyvoice_app import assets

        return assets.cli(arguments[1:])
    if arguments[:1] == ["bench"]:
        from cosyvoice_app import bench

        return _guarded(lambda: bench.cli(arguments[1:]), json=False)
    options = _parser().parse_args(arguments)
    level = logging.INFO if options.verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
    return _guarded(lambda: options.run(options), json=getattr(options, "json", False))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cosyvoice_app", description="Say a text in the voice of a clip.",
        epilog="Every engine option can also be set by the environment variable its help names.")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--verbose", action="store_true", help="log what the engine does")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        sub = commands.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    commands.add_parser("assets", help="model files: list, fetch, verify", add_help=False)
    commands.add_parser("bench", help="measure: latency, normalisers", add_help=False)
    return parser


def _guarded(work: Callable[[], int], *, json: bool) -> int:
    try:
        return work()
    except AppError as error:
        if json:
            print_json({"error": error.to_dict()})
        else:
            print(f"error: {error.message}", file=sys.stderr)
        return USAGE if isinstance(error, _USAGE_ERRORS) else FAILED
    except ModuleNotFoundError as error:
        print(f"error: {error.name} is not installed. Install what requirements.txt lists.", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output went away (`| head`); say nothing more
        return FAILED
