"""Long silences the language model gets stuck in: only the first tokens of a run reach the flow, as in
the official code's cosyvoice/cli/model.py."""

from __future__ import annotations

from cosyvoice_app.engines.cosyvoice3.config import MAX_SILENT_RUN, SILENT_TOKENS


class SilenceFilter:
    """Of one request. The model's own history keeps every token; this decides what is heard."""

    def __init__(self) -> None:
        self._run = 0

    def keeps(self, token: int) -> bool:
        self._run = self._run + 1 if token in SILENT_TOKENS else 0
        return self._run <= MAX_SILENT_RUN
