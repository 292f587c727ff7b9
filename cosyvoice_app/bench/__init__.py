"""Measurements. Each prints a table for people and ends with one line of JSON for machines."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cosyvoice_app.bench import batching, chaos, cosyvoice3, features, latency, load, normalisers, reading, slope

_BENCHES = (batching, chaos, cosyvoice3, features, latency, load, normalisers, reading, slope)


def cli(argv: Sequence[str]) -> int:
    """`bench NAME [options]`."""
    options = make_parser().parse_args(argv)
    status: int = options.run(options)
    return status


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cosyvoice_app bench", description=__doc__)
    names = parser.add_subparsers(dest="bench", required=True, metavar="NAME")
    for bench in _BENCHES:
        sub = names.add_parser(bench.NAME, help=bench.HELP, description=bench.HELP)
        bench.add_arguments(sub)
        sub.set_defaults(run=bench.run)
    return parser
