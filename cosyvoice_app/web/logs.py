"""Log lines: one a request, with what was done, and never with a clip, a file's name, a key, or (below debug) a text.

`configure` sets up the standard logging of this process; `note` adds facts to the line of the request at hand.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any

from cosyvoice_app.settings import Settings

ACCESS = "cosyvoice_app.access"
DIGEST_CHARS = 12
_FIELDS = "fields"
"""Name of a record's attribute that holds a dict of further values."""
_CHATTY = ("httpx", "httpx2", "mcp", "PIL", "asyncio", "python_multipart", "uvicorn.error")
# Control characters, line separators, and what reverses the direction of text: all that could forge or hide a line.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_facts: ContextVar[dict[str, Any] | None] = ContextVar("facts", default=None)


def configure(settings: Settings) -> None:
    """Write every log line of this process to stderr, as `--log-format` and `--log-level` say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").disabled = True


def begin(facts: dict[str, Any]) -> None:
    """From here on `note` adds to `facts`, in this task and those it starts."""
    _facts.set(facts)


def note(**facts: Any) -> None:
    """Add to the line of the request at hand; nothing where there is none."""
    current = _facts.get()
    if current is not None:
        current.update(facts)


def note_text(text: str) -> None:
    note(**described(text))


def described(text: str) -> dict[str, Any]:
    """A text as its length and the beginning of its SHA-256; the text itself only when debugging."""
    facts: dict[str, Any] = {
        "chars": len(text),
        "text_sha256": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS],
    }
    if logging.getLogger(ACCESS).isEnabledFor(logging.DEBUG):
        facts["text"] = text
    return facts


def access(level: int, message: str, facts: dict[str, Any]) -> None:
    logging.getLogger(ACCESS).log(level, message, extra={_FIELDS: facts})


def escaped(text: str) -> str:
    """On one line, and only what it seems to be."""
    return _UNSAFE.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}",
                       text)


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00,123 INFO name: message key=value key="two words"`; tracebacks follow, indented."""

    def format(self, record: logging.LogRecord) -> str:
        words = [f"{self.formatTime(record)} {record.levelname} {record.name}: {escaped(record.getMessage())}"]
        words += [f"{name}={_word(value)}" for name, value in _fields(record).items()]
        trace = "".join(f"\n    {escaped(line)}" for line in _trace(self, record).split("\n") if line)
        return " ".join(words) + trace


class JsonFormatter(logging.Formatter):
    """One object a line; `time` is ISO 8601 in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line = {"time": moment.replace("+00:00", "Z"), "level": record.levelname.lower(), "logger": record.name,
                "message": record.getMessage(), **_fields(record)}
        trace = _trace(self, record)
        if trace:
            line["trace"] = trace
        # ASCII: whatever is in a value, a line of the log stays one line of JSON.
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, _FIELDS, None)
    return fields if isinstance(fields, dict) else {}


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    said = formatter.formatException(record.exc_info) if record.exc_info else ""
    return said + (f"\n{record.stack_info}" if record.stack_info else "")


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = escaped(str(value))
    if text and not re.search(r'[\s"=\\]', text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
