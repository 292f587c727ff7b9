"""Take docs/screenshot.png from the running app: `python docs/make_screenshot.py [--engine lite]`.

Starts the app on a free port, gives it a clip, generates, and saves the page. Needs Chromium and requirements-dev.txt.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser.chromium import Watched, started  # noqa: E402
from web_server import running  # noqa: E402

TEXT = {
    "en-US": "The rain has stopped. Shall we walk home along the river?",
    "zh-CN": "今天的晚霞真好看，我们去江边走走吧。",
}
GENERATE_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="lite")
    parser.add_argument("--locale", default="en-US", choices=sorted(TEXT))
    parser.add_argument("--clip", type=Path, default=ROOT / "tests" / "data" / "p0_en.flac")
    parser.add_argument("--cache", help="the app's --cache: where the model files already are")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshot.png")
    asked = parser.parse_args()
    options = ["--outputs", "outputs", *(["--cache", asked.cache] if asked.cache else [])]
    with (
        tempfile.TemporaryDirectory() as folder,
        started() as browser,
        running(Path(folder), *options, engine=asked.engine) as server,
    ):
        visitor = Watched(browser, server.url, locale=asked.locale)
        visitor.give(str(asked.clip), TEXT[asked.locale], "42")
        visitor.page.click("#generate")
        visitor.page.wait_for_selector("#summary .vc-picture", timeout=GENERATE_S * 1000)
        visitor.page.mouse.move(0, 0)
        visitor.page.wait_for_timeout(1500)
        visitor.page.screenshot(path=asked.out, full_page=True)
    print(asked.out)


if __name__ == "__main__":
    main()
