"""Zero-shot voice cloning: a clip and a text in, that voice saying it out."""

__version__ = "0.1.0"
