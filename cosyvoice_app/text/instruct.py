"""LOCAL PLACEHOLDER by helper B until helper A's file arrives: overwrite freely. Not committed."""
from cosyvoice_app.types import Intent


def parse_instruct(text: str) -> Intent:
    return Intent(text=text)
