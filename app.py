"""`python app.py`: parse the options, build the service, serve the page and the API on one port."""

from __future__ import annotations

import argparse
import sys

from cosyvoice_app import settings as settings_module
from cosyvoice_app.errors import AppError
from cosyvoice_app.web import logs


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="app.py", description="Zero-shot voice cloning: page and HTTP API on one port."
    )
    settings_module.add_arguments(parser)
    arguments = parser.parse_args()
    try:
        settings = settings_module.resolve(arguments)
        logs.configure(settings)
        from cosyvoice_app.serving.service import EngineService
        from cosyvoice_app.voices.library import VoiceLibrary
        from cosyvoice_app.web.server import serve

        serve(settings, EngineService(settings), VoiceLibrary(settings))
    except AppError as error:
        print(f"app.py: {error.message}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":  # the engine worker is a spawned process and imports this file again
    sys.exit(main())
