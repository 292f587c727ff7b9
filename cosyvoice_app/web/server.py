"""One FastAPI app: the HTTP API, and the page mounted at `/`. `serve` owns the port and the service's life."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from cosyvoice_app import __version__
from cosyvoice_app.errors import ConfigError
from cosyvoice_app.serving.request import Service
from cosyvoice_app.settings import Settings
from cosyvoice_app.voices.clips import ClipCache
from cosyvoice_app.voices.library import VoiceLibrary
from cosyvoice_app.web import errors
from cosyvoice_app.web.api import build_router
from cosyvoice_app.web.control import EngineControl
from cosyvoice_app.web.guard import Guard
from cosyvoice_app.web.limits import LimitedService, Rate
from cosyvoice_app.web.openapi import complete
from cosyvoice_app.web.proxy import TrustedProxy, trusted_proxies
from cosyvoice_app.web.slow_clients import TimedProtocol

SHUTDOWN_GRACE_S = 3
BACKLOG = 1024
"""Connections the system takes for us before we get to them: a hundred people may press at once."""
CONNECTIONS = 4096
"""Most open at once, beyond which uvicorn answers 503; fewer where the system allows fewer open files."""
FILES_BESIDE = 256
"""Open files that are not connections."""
KEEP_ALIVE_S = 10


def build_app(settings: Settings, service: Service, library: VoiceLibrary) -> FastAPI:
    """The whole web process as one ASGI app. Starts the service with it and ends it with it."""
    proxies = trusted_proxies(settings.trusted_proxy)
    rate = Rate(settings)
    service = LimitedService(service, settings, rate)
    control = EngineControl(service)
    uploads = Path(tempfile.mkdtemp(prefix="cosyvoice-uploads-"))

    @contextlib.asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(service.start)
        try:
            yield
        finally:
            await run_in_threadpool(service.close)
            control.close()
            shutil.rmtree(uploads, ignore_errors=True)

    # No /docs: FastAPI's page loads its scripts from another host. /openapi.json and docs/api.md say the same.
    app = FastAPI(title="Voice cloning", version=__version__, docs_url=None, redoc_url=None, lifespan=life)
    errors.install(app)
    app.include_router(build_router(settings, service, library, control))
    complete(app)
    _mount_page(app, settings, service, uploads, library.clips, control)
    service.watch_cache("clips", library.clips.counts)
    app.add_middleware(Guard, settings=settings, service=service, rate=rate)
    if proxies:
        app.add_middleware(TrustedProxy, proxies=proxies)
    return app


def _mount_page(
    app: FastAPI, settings: Settings, service: Service, uploads: Path, clips: ClipCache, control: EngineControl
) -> None:
    # Gradio reads these when it is imported or builds its first component.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    os.environ["HF_HUB_OFFLINE"] = "1"
    from cosyvoice_app.web.ui import mount_page

    mount_page(app, settings, service, uploads, clips, control)


def claim_port(host: str, port: int) -> socket.socket:
    """Bind before anything else starts. Raises ConfigError naming the port; never takes another one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    if os.name == "posix":  # on Windows this option would let two servers share the port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Can't listen on {host} port {port}: {error.strerror or error}. "
            f"Close the program that uses port {port}, or choose another with --port.",
            param="port",
        ) from error
    return listener


def serve(settings: Settings, service: Service, library: VoiceLibrary) -> None:
    """Serve until interrupted. Raises ConfigError when the port is taken."""
    with contextlib.closing(claim_port(settings.host, settings.port)) as listener:
        config = uvicorn.Config(
            build_app(settings, service, library),
            http=TimedProtocol,
            ws="none",
            log_config=None,  # its loggers write where all others do
            access_log=False,
            backlog=BACKLOG,
            limit_concurrency=_most_connections(),
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
            server_header=False,
            proxy_headers=False,  # uvicorn believes whoever calls from this machine; see proxy.py
        )
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        print(f"Serving on http://{shown}:{settings.port}", flush=True)
        _Server(config, service).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends the service before the connections, so that everyone who waits is told why and need not be cut off.

    Deaf to a second Ctrl-C: the end is under way, and cut short it would leave things behind.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await run_in_threadpool(self._service.close)
        await super().shutdown(sockets)


def _most_connections() -> int:
    """Raises the process's own limit of open files as far as it may."""
    try:
        import resource
    except ImportError:  # Windows, whose limit is far higher
        return CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return CONNECTIONS if soft == resource.RLIM_INFINITY else max(64, min(CONNECTIONS, soft - FILES_BESIDE))
