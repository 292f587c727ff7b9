"""What the engines that come with the app can do, known without loading one: the page and the front end ask before."""

from __future__ import annotations

from cosyvoice_app.text.tags import POINT_EVENTS, SPAN_EVENTS
from cosyvoice_app.types import Capabilities, SplitLimits

LITE = Capabilities(
    languages=("zh", "en"),
    streaming=True,
    instruct=("speed", "pitch", "range", "loudness", "emotion"),
    needs_transcript=False,
    rate_hz=24_000,
    max_prompt_s=15.0,
    refine=("off", "fast", "full"),
    split=SplitLimits(most=150, least=30, fill=0, unit="sounds"),
    trim_silence=True,
    max_rows=8,  # 1 on a GPU or with one core
)

COSYVOICE3 = Capabilities(
    languages=("zh", "en", "ja", "ko", "de", "es", "fr", "it", "ru"),
    streaming=True,
    instruct=("speed", "loudness", "emotion", "dialect", "role", "free"),
    needs_transcript=True,
    rate_hz=24_000,
    max_prompt_s=30.0,
    events=(*POINT_EVENTS, *SPAN_EVENTS),
    # Its authors join sentences while they fit in 80 tokens, and a rest below 20 to what precedes. They also let a
    # stretch of up to 60 grow beyond 80 by its next sentence; here 80 is the most.
    split=SplitLimits(most=80, least=20, fill=80, unit="tokens"),
    # The language model joins rows by itself, at every step. Flow and vocoder take rows one by one: together they would
    # be the same within rounding only.
    max_rows=1,
    concurrent=True,
)

TONE = Capabilities(
    languages=("en", "zh"),
    streaming=True,
    instruct=("free",),
    needs_transcript=False,
    rate_hz=24_000,
    max_prompt_s=15.0,
    refine=("off", "fast", "full"),
    max_rows=8,
    concurrent=True,
)

KNOWN = {"lite": LITE, "cosyvoice3": COSYVOICE3, "tone": TONE}
