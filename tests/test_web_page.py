"""The page through Gradio's own client, as scripts and MCP callers see it; and its words in both languages."""

from __future__ import annotations

import asyncio
import json
import re
import string
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html import escape
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import httpx
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError, ValidationError
from web_server import Server, pcm_hash, running

from cosyvoice_app.engines.capabilities import COSYVOICE3, LITE
from cosyvoice_app.errors import AssetError
from cosyvoice_app.serving.request import Queued, Working
from cosyvoice_app.settings import Settings
from cosyvoice_app.text.instruct import INSTRUCT_CHIPS
from cosyvoice_app.types import Capabilities, Progress
from cosyvoice_app.web import desk as desk_module
from cosyvoice_app.web import i18n, page_parts, ui
from cosyvoice_app.web.desk import Desk
from cosyvoice_app.web.visitor import client_of


def client(server: Server, folder: Path) -> Client:
    return Client(server.url, verbose=False, download_files=str(folder))


def say(page: Client, clip: Path, text: str = "海边的风很凉快。", **more: object) -> tuple[str, dict[str, object], str]:
    return page.predict(  # type: ignore[no-any-return]
        clip=handle_file(str(clip)), text=text, api_name="/synthesize", **{"seed": "", **more}
    )


@pytest.fixture
def page(server: Server, tmp_path: Path) -> Client:
    return client(server, tmp_path)


def test_the_documented_names_are_there(page: Client) -> None:
    named = page.view_api(return_format="dict")["named_endpoints"]
    assert {"/synthesize", "/check_prompt", "/restart", "/random_seed", "/unload", "/load", "/read"} == set(named)


def test_what_is_heard_is_what_is_saved(page: Client, server: Server, p0_wav: Path) -> None:
    audio, info, summary = say(page, p0_wav, seed="42")
    assert info["seed"] == 42 and "42" in summary
    assert Path(audio).read_bytes() == (server.outputs / str(info["file"])).read_bytes()
    assert str(info["file"]) in summary


def test_page_and_api_agree(page: Client, api: httpx.Client, p0_wav: Path) -> None:
    audio, _, _ = say(page, p0_wav, seed="42")
    answer = api.post("/v1/clone", files={"file": p0_wav.read_bytes()}, data={"text": "海边的风很凉快。", "seed": "42"})
    assert pcm_hash(Path(audio).read_bytes()) == pcm_hash(answer.content)


def test_a_number_may_be_a_number(page: Client, p0_wav: Path) -> None:
    assert say(page, p0_wav, seed=42)[1]["seed"] == 42


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": "0"},
        {"seed": "1.5"},
        {"seed": 4294967296},
        {"seed": "abc"},
        {"text": "  "},
        {"text": "。。。"},
        {"text": "长" * 400},
        {"instruct": "慢" * 2000},
        {"seed": "9001"},
        {"seed": "9006"},
    ],
    ids=lambda wrong: "-".join(f"{name}={str(value)[:12]!a}" for name, value in wrong.items()),
)
def test_bad_input_is_an_error_and_leaves_no_file(
    page: Client, server: Server, p0_wav: Path, wrong: dict[str, object]
) -> None:
    before = server.saved()
    with pytest.raises((AppError, ValueError)):
        say(page, p0_wav, **wrong)
    assert server.saved() == before
    assert say(page, p0_wav, "你好。")[1]["file"]


@pytest.mark.parametrize("name", ["zero.wav", "header.wav", "stub.webm", "text.wav", "len_2.9.wav", "len_15.1.wav"])
def test_unusable_clips_are_refused(page: Client, clips: Path, name: str) -> None:
    report = page.predict(clip=handle_file(str(clips / name)), api_name="/check_prompt")
    assert report[0]["ok"] is False and report[0]["error"]
    with pytest.raises(AppError, match=re.escape(report[0]["error"][:20])):
        say(page, clips / name)


@pytest.mark.parametrize(
    "name", ["c.mp3", "c.m4a", "c.ogg", "c.webm", "c.flac", "noext", "mp3_named.wav", "sr_8000.wav"]
)
def test_real_clips_are_used(page: Client, clips: Path, name: str) -> None:
    report = page.predict(clip=handle_file(str(clips / name)), api_name="/check_prompt")[0]
    assert report["ok"] and report["duration_s"] == pytest.approx(6.0, abs=0.1)
    assert say(page, clips / name)[1]["file"]


def call(api: httpx.Client, name: str, data: list[object]) -> str:
    """A call as a script without gradio_client makes it, so that nothing is uploaded on the way."""
    answer = api.post(f"/gradio_api/call/{name}", json={"data": data})
    if answer.status_code != 200:
        return f"event: error\n{answer.text}"
    return api.get(f"/gradio_api/call/{name}/{answer.json()['event_id']}").text


def test_a_clip_must_be_ones_own_upload(api: httpx.Client, server: Server, p0_wav: Path, tmp_path: Path) -> None:
    """A path on the server, or an address, sent as if it were an upload, is not opened: not in any field."""
    answer = api.post("/v1/clone", files={"file": p0_wav.read_bytes()}, data={"text": "好。"})
    saved = server.outputs / answer.headers["x-output-path"]
    secret = tmp_path / "secret.txt"
    secret.write_text("swordfish")
    for path in (
        str(p0_wav),
        str(saved),
        str(secret),
        "/etc/passwd",
        "app.py",
        "http://127.0.0.1:1/a.wav",
        "http://example.org/",
    ):
        sent = {"path": path, "meta": {"_type": "gradio.FileData"}}
        for answer in (
            call(api, "check_prompt", [sent]),
            call(api, "synthesize", [sent, "好。", "", "", "", 1, "off"]),
            call(api, "synthesize", [sent, sent, "", "", "", 1, "off"]),
        ):
            assert answer.startswith("event: error"), (path, answer)
            assert "duration_s" not in answer and "swordfish" not in answer


def test_random_seeds_differ_and_fit(page: Client) -> None:
    seeds = {int(page.predict(api_name="/random_seed")) for _ in range(5)}
    assert len(seeds) == 5 and all(1 <= seed <= 100_000_000 for seed in seeds)


def test_each_visitor_gets_their_own_audio(
    server: Server, api: httpx.Client, tmp_path: Path, p0_wav: Path, p1_wav: Path
) -> None:
    """Page visitors and API callers at once, Gradio's own queue not in the way."""
    jobs = [(text, clip) for text in "甲乙丙丁" for clip in (p0_wav, p1_wav)]
    pages = [client(server, tmp_path / str(i)) for i in range(len(jobs))]

    def through_page(number: int) -> str:
        text, clip = jobs[number]
        audio, info, _ = say(pages[number], clip, f"第{text}句话。", seed="7")
        assert (server.outputs / str(info["file"])).read_bytes() == Path(audio).read_bytes()
        return pcm_hash(Path(audio).read_bytes())

    def through_api(number: int) -> str:
        text, clip = jobs[number]
        fields = {"text": f"第{text}句话。", "seed": "7"}
        return pcm_hash(api.post("/v1/clone", files={"file": clip.read_bytes()}, data=fields).content)

    serial = [through_api(number) for number in range(len(jobs))]
    assert len(set(serial)) == len(jobs)
    with ThreadPoolExecutor(2 * len(jobs)) as pool:
        asked = [pool.submit(through_page, n) for n in range(len(jobs))]
        asked += [pool.submit(through_api, n) for n in range(len(jobs))]
        assert [one.result() for one in asked] == serial * 2


def test_a_visitor_who_leaves_frees_the_engine(server: Server, page: Client, api: httpx.Client, p0_wav: Path) -> None:
    before = server.saved()
    job = page.submit(clip=handle_file(str(p0_wav)), text="你好。", seed="9010", api_name="/synthesize")
    while api.get("/health").json()["running"] == 0:
        time.sleep(0.05)
    job.cancel()
    started = time.monotonic()
    assert api.post("/v1/clone", files={"file": p0_wav.read_bytes()}, data={"text": "你好。"}).status_code == 200
    assert time.monotonic() - started < 3
    assert len(server.saved() - before) == 1


def test_others_uploads_and_results_have_no_guessable_address(
    server: Server, api: httpx.Client, page: Client, p0_wav: Path
) -> None:
    info = say(page, p0_wav)[1]
    for guess in (f"{server.outputs}/{info['file']}", str(info["file"]), f"/tmp/gradio/{info['file']}"):
        assert api.get(f"/gradio_api/file={guess}").status_code in (403, 404)


def test_mcp_lists_the_tools(api: httpx.Client) -> None:
    tools = {tool["name"]: tool for tool in api.get("/gradio_api/mcp/schema").json()}
    assert {"synthesize", "check_prompt", "restart", "random_seed"} <= set(tools)
    assert "3-15 seconds" in json.dumps(tools["synthesize"])


def test_restart_changes_the_worker(tmp_path: Path) -> None:
    with running(tmp_path) as server, httpx.Client(base_url=server.url) as api:
        page = client(server, tmp_path)
        before = api.get("/health").json()["worker_pid"]
        assert "MB" in page.predict(api_name="/restart")
        after = api.get("/health").json()["worker_pid"]
        assert before != after
        page.predict(api_name="/unload")
        assert api.get("/health").json()["state"] == "unloaded"
        page.predict(api_name="/load")
        assert api.get("/health").json()["state"] == "ready"


def test_a_restart_may_wait_for_what_runs(tmp_path: Path, p0_wav: Path) -> None:
    with running(tmp_path, engine="engines_for_tests:QuickTone") as server, httpx.Client(base_url=server.url) as api:
        page = client(server, tmp_path)
        for drain, saved in ((True, 1), (False, 1)):
            job = page.submit(clip=handle_file(str(p0_wav)), text="你好。", seed="9010", api_name="/synthesize")
            while api.get("/health").json()["running"] == 0:
                time.sleep(0.02)
            assert "MB" in page.predict(drain=drain, api_name="/restart")
            if drain:
                assert job.result()[1]["seed"] == 9010
            else:
                with pytest.raises(AppError, match="restarted"):
                    job.result()
            assert len(server.saved()) == saved


def asked_by(api: httpx.Client, clip: Path) -> list[object]:
    """The values of a slow request, its clip uploaded."""
    path = api.post("/gradio_api/upload", files={"files": ("p.wav", clip.read_bytes())}).json()[0]
    return [{"path": path, "meta": {"_type": "gradio.FileData"}}, "你好。", "", "", "9010", 1, "off", ""]


def until_running(api: httpx.Client, count: int) -> None:
    end = time.monotonic() + 30
    while api.get("/health").json()["running"] != count:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_who_leaves_any_stream_of_results_frees_the_engine(tmp_path: Path, p0_wav: Path) -> None:
    """One sentence of ten minutes, so that nothing comes on the way to be missed by the one who left."""
    with running(tmp_path, engine="engines_for_tests:SlowSentence") as server:
        with httpx.Client(base_url=server.url, timeout=60) as api:
            data = asked_by(api, p0_wav)
            event = api.post("/gradio_api/call/synthesize", json={"data": data}).json()["event_id"]
            with api.stream("GET", f"/gradio_api/call/synthesize/{event}") as answer:
                lines = answer.iter_lines()  # once it is dropped, so is the connection
                next(lines)
                until_running(api, 1)
            until_running(api, 0)

            named = {one["api_name"]: one["id"] for one in api.get("/config").json()["dependencies"]}
            body = {"data": data, "fn_index": named["synthesize"], "session_hash": "a-tab"}
            assert api.post("/gradio_api/queue/join", json=body).status_code == 200
            with api.stream("GET", "/gradio_api/queue/data?session_hash=a-tab") as answer:
                lines = answer.iter_lines()  # once it is dropped, so is the connection
                next(lines)
                until_running(api, 1)
            until_running(api, 0)
        assert not server.saved()


def test_calls_that_do_not_fit_are_told_so_and_leave_no_text_in_the_log(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--log-format", "json") as server,
        httpx.Client(base_url=server.url, timeout=60) as api,
    ):
        file = {"path": "/etc/SECRETFILE", "meta": {"_type": "gradio.FileData"}}
        for path, body in (
            ("run/nope", {"data": []}),
            ("call/nope", {"data": []}),
            ("run/predict", {"fn_index": 9999, "data": []}),
            ("call/v2/read", {"a": "SECRETTWO"}),
            ("queue/join", {"data": ["SECRETFIVE"], "fn_index": 99999, "session_hash": "x"}),
        ):
            answer = api.post(f"/gradio_api/{path}", json=body)
            assert answer.status_code == 400, (path, answer.text)
            assert answer.json()["error"]["type"] == "invalid_request_error"
        for path, values in (
            ("run/read", ["SECRETONE"]),
            ("run/synthesize", [None, "SECRETTHREE"]),
            ("call/read", ["SECRETFOUR"]),
            ("run/synthesize", [file, "SECRETSIX", "", "", "", 1, "fast", ""]),
            ("run/synthesize", [None, "SECRETSEVEN", "", "", "", ["SECRETEIGHT"], "fast", ""]),
            ("run/synthesize", [None, "SECRETNINE", "", "", "", 1, "SECRETTEN", ""]),
        ):
            assert api.post(f"/gradio_api/{path}", json={"data": values}).status_code in (200, 400, 422, 500)
        assert api.get("/health").status_code == 200
    lines = server.log.read_text("utf-8").splitlines()
    assert "SECRET" not in "\n".join(lines)
    told = [json.loads(line) for line in lines if line.startswith("{")]
    assert "the page: KeyError" in {one["message"] for one in told}
    assert not [line for line in lines if "Traceback" in line or line.startswith(" ")]


@pytest.mark.parametrize(
    "found", [{}, {"ok": True}, {"ok": True, "speech_s": "x", "suggested_window_s": 3}, [1],
              {"ok": True, "speech_s": [], "suggested_window_s": [1, "2"]},
              {"suggested_window_s": [2.0, 1.0]}, {"suggested_window_s": [0.0, float("inf")]}]
)  # fmt: skip
def test_a_clips_report_that_was_made_up_is_no_report(desk: Desk, p0_wav: Path, found: object) -> None:
    asked = gr.Request(headers={"accept-language": "en"})
    assert desk.check_words("Some words.", found, asked) == ""  # type: ignore[arg-type]
    assert desk.use_stretch(str(p0_wav), found) == gr.skip()  # type: ignore[arg-type]


def test_visitors_are_told_apart_by_address_and_tab() -> None:
    def named(host: str, session: str) -> str:
        return client_of(gr.Request(client={"host": host}, session_hash=session))

    first = named("192.0.2.1", "tab one")
    page_, address, session = first.split(":")
    assert (page_, address) == ("page", "192.0.2.1")
    assert len(session) == 16 and set(session) <= set("0123456789abcdef")
    assert first == named("192.0.2.1", "tab one")
    assert len({first, named("192.0.2.1", "tab two"), named("192.0.2.2", "tab one")}) == 3


@pytest.mark.parametrize("kind", ["rate_limited", "too_large", "not_found", "too_slow"])
def test_refusals_have_their_own_heading(kind: str) -> None:
    for lang in i18n.LANGS:
        assert i18n.error_heading(lang, kind) != i18n.error_heading(lang, "unheard of")


# the clip's words


def recognised(desk: Desk, clip: Path | None, typed: str, lang: str = "en") -> tuple[object, str]:
    request = gr.Request(headers={"accept-language": lang})
    return asyncio.run(desk.recognise_words(str(clip) if clip else None, typed, request))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(Settings(cache=tmp_path), None, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("lang", i18n.LANGS)
def test_recognised_words_are_for_correction(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, p0_wav: Path, tmp_path: Path, lang: str
) -> None:
    asked = []

    def hear(samples: object, rate_hz: int, *, cache: Path | None = None) -> str:
        asked.append((len(samples) / rate_hz, cache, threading.current_thread() is threading.main_thread()))  # type: ignore[arg-type]
        return "Good morning."

    monkeypatch.setattr(desk_module, "recognise_english", hear)
    words, remark = recognised(desk, p0_wav, "", lang)
    assert words == "Good morning." and i18n.say(lang, "words_check") in remark  # type: ignore[arg-type]
    assert asked == [(pytest.approx(6.0, abs=0.1), tmp_path, False)], "runs off the event loop"
    words, remark = recognised(desk, p0_wav, "Good <morrow>.", lang)
    assert words == "Good morning." and "Good &lt;morrow&gt;." in remark, "what was typed can still be copied"


def test_typed_words_stay_when_none_are_heard(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, p0_wav: Path, clips: Path
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise AssetError("The model is missing.")

    monkeypatch.setattr(desk_module, "recognise_english", fail)
    outcomes = [(recognised(desk, p0_wav, "Mine."), "The model is missing.")]
    monkeypatch.setattr(desk_module, "recognise_english", lambda *_, **__: None)
    outcomes.append((recognised(desk, p0_wav, "Mine."), i18n.say("en", "words_none")))
    outcomes.append((recognised(desk, clips / "text.wav", "Mine."), i18n.say("en", "error_invalid_prompt")))
    outcomes.append((recognised(desk, None, "Mine."), i18n.say("en", "need_clip")))
    for (words, remark), said in outcomes:
        assert words == gr.skip(), "the box is left alone"
        assert escape(said) in remark


@pytest.mark.parametrize("obstacle", ["", "Recognising words needs a package."])
def test_words_are_offered_only_where_they_can_be_recognised(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, obstacle: str
) -> None:
    asked = []
    monkeypatch.setattr(ui, "why_not", lambda cache: asked.append(cache) or obstacle)
    page = ui.build_page(desk.settings, desk)
    (button,) = [block for block in page.blocks.values() if getattr(block, "elem_id", "") == "recognise"]
    assert button.visible is (obstacle == "") and asked == [tmp_path]


# words


def test_both_languages_have_every_string_with_the_same_blanks() -> None:
    english, chinese = i18n.strings("en"), i18n.strings("zh")
    assert english.keys() == chinese.keys()
    for key, text in english.items():
        assert text.strip() and chinese[key].strip(), key
        blanks = [{name for _, name, _, _ in string.Formatter().parse(one) if name} for one in (text, chinese[key])]
        assert blanks[0] == blanks[1], key


def test_every_string_asked_for_exists_and_every_string_is_used() -> None:
    source = "".join(path.read_text("utf-8") for path in Path(i18n.__file__).parent.glob("*.py"))
    asked = set(re.findall(r'(?:i18n\(|say\(\w+, |say\("\w+", )"(\w+)"', source))
    assert asked <= i18n.strings("en").keys()
    table = i18n.strings("en").keys()
    families = ("error_", "finding_", "kind_", "stage_", "state_", "refine_", "sample_", "language_")
    used = set(re.findall(r"""["'](\w+)["'](?!: \()""", source))
    unused = {key for key in table if key not in used and not key.startswith(families)}
    assert not unused


def test_findings_of_the_prompt_doctor_are_all_translated() -> None:
    from cosyvoice_app.audio import prompt

    codes = re.findall(r'note\("(\w+)"', Path(prompt.__file__).read_text("utf-8"))
    assert codes and all(i18n.has(f"finding_{code}") for code in codes)


@pytest.mark.parametrize(
    ("header", "lang"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-US,en", "en"),
        ("fr-FR,zh;q=0.5", "zh"),
        ("de", "en"),
        ("", "en"),
        (None, "en"),
    ],
)
def test_the_browsers_language_chooses(header: str | None, lang: str) -> None:
    assert i18n.language_of(header) == lang


def test_chips_are_pairs_in_both_languages() -> None:
    for chinese, english in INSTRUCT_CHIPS:
        assert english.isascii() and not chinese.isascii()


def test_the_status_line_speaks_the_browsers_language(api: httpx.Client) -> None:
    assert "就绪" in api.get("/page/status", headers={"Accept-Language": "zh-CN"}).text
    assert "Ready" in api.get("/page/status", headers={"Accept-Language": "en"}).text


@pytest.mark.parametrize(
    ("engine", "english", "chinese"),
    [
        (LITE, "English or Chinese, or both", "中文、英文或中英混合"),
        (
            COSYVOICE3,
            "Chinese, English, Japanese, Korean, German, Spanish, French, Italian or Russian",
            "中文、英文、日文、韩文、德文、西班牙文、法文、意大利文或俄文",
        ),
        (replace(LITE, languages=("xx",)), "xx", "xx"),
    ],
)
def test_the_text_box_names_the_engines_languages(engine: Capabilities, english: str, chinese: str) -> None:
    assert page_parts.languages(engine, "en") == english and page_parts.languages(engine, "zh") == chinese
    assert all(i18n.has(f"language_{code}") for code in COSYVOICE3.languages)


def test_the_place_in_the_queue_and_the_stream_are_told() -> None:
    waiting = page_parts.progress(Queued(3), "en", "name<")
    assert "3 before you" in waiting and 'data-stream="name&lt;"' in waiting and 'role="status"' in waiting
    assert "前面还有 3 个" in page_parts.progress(Queued(3), "zh")
    assert "data-stream" not in page_parts.progress(None, "en")
    assert 'aria-valuenow="50"' in page_parts.progress(Working(Progress("speaking", 0.5)), "en")


# what will be read


def test_what_will_be_read_is_what_is_read(page: Client, p0_wav: Path) -> None:
    text = "行家说今天是2024-02-29。\r\n他[h][ào]学[xyz1]。"
    own = "行家 = háng jiā"
    shown = page.predict(text, own, api_name="/read")
    plain = re.sub("<[^>]+>", "", shown)
    for expected in ("[h][áng][j][iā]", "二零二四年二月二十九日", "[h][ào]", "0.35 s", "[xyz1]"):
        assert expected in plain
    _, info, _ = say(page, p0_wav, text, pronunciations=own)
    segments = info["segments"]
    assert isinstance(segments, list) and len(segments) == 2
    assert all(segment in plain for segment in segments)


def test_reading_never_fails_and_says_why_nothing_is_read(page: Client) -> None:
    assert page.predict("", "", api_name="/read") == ""
    assert "As typed" in page.predict("海边的风很凉快。", "", api_name="/read")
    assert "nothing to speak" in page.predict("。。。", "", api_name="/read")
    assert "the limit is" in page.predict("长" * 300, "", api_name="/read")
    assert "syllables with tones" in page.predict("好", "好 = x", api_name="/read")
    assert "Japanese" in page.predict("東京は今日も晴れです。", "", api_name="/read")
    hostile = page.predict("<script>alert(1)</script>好<b onload=x>", "", api_name="/read")
    assert "<script" not in hostile and "<b o" not in hostile


def test_a_wrong_word_list_is_refused_before_the_queue(server: Server, page: Client, p0_wav: Path) -> None:
    before = server.saved()
    with pytest.raises(ValidationError, match="syllables with tones"):
        say(page, p0_wav, pronunciations="好 = x")
    assert server.saved() == before


@pytest.mark.parametrize("engine", [None, LITE, COSYVOICE3])
def test_the_clips_words_are_held_against_its_length(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, engine: Capabilities | None
) -> None:
    monkeypatch.setattr(desk, "service", SimpleNamespace(capabilities=lambda: engine))
    request = gr.Request(headers={"accept-language": "en"})
    found = {"ok": True, "speech_s": 3.0}
    assert desk.check_words("And always that same pretext is offered.", found, request) == ""
    assert "too many" in desk.check_words("今天天气很好，我们去公园走走吧。" * 5, found, request)
    assert "字数过少" in desk.check_words("好", found, gr.Request(headers={"accept-language": "zh"}))
    assert desk.check_words("好", None, request) == desk.check_words(" ", found, request) == ""
    # Only an engine that speaks Korean counts its syllables.
    said = desk.check_words("안녕하세요, 오늘은 날씨가 좋네요.", {"ok": True, "speech_s": 4.0}, request)
    assert ("too few" in said) == (engine is not COSYVOICE3)
