"""When a streamed segment's tokens go to the flow: state of one request, so that nobody else's stream slows it down.

The streaming mask cuts time every 25 tokens, counted from the start of the prompt, and a chunk can be made once it is
whole and three tokens beyond it are known. After the first cut the hop doubles up to 100 tokens: few large pieces cost
less than many small ones. Upstream (cosyvoice/cli/model.py) takes the second cut first.
"""

from __future__ import annotations

GRID_TOKENS = 25
HOP_MOST_TOKENS = 100
FIRST_LEAST_TOKENS = 10
"""A first piece shorter than this would be heard as a stutter: it is worth 0.24 s after the vocoder's look-ahead."""


class Hops:
    """Counts speech tokens; `due(n)` tells when the first `n` of them make another piece."""

    def __init__(self, prompt_tokens: int, lookahead_tokens: int) -> None:
        first = -prompt_tokens % GRID_TOKENS
        self._next = first if first >= FIRST_LEAST_TOKENS else first + GRID_TOKENS
        self._hop = GRID_TOKENS
        self._lookahead = lookahead_tokens

    def due(self, tokens: int) -> bool:
        """True once for each piece, as soon as `tokens` speech tokens suffice for it."""
        if tokens < self._next + self._lookahead:
            return False
        self._next += self._hop
        self._hop = min(HOP_MOST_TOKENS, 2 * self._hop)
        return True
