"""Every string of the page, in English and Chinese, by key. The browser's language chooses.

Labels are translated by Gradio in the browser; what the server writes later (progress, results) is translated here,
by the same browser's `Accept-Language`. Values go in with `str.format` names: {seconds}.
"""

from __future__ import annotations

from typing import Any, Literal

Lang = Literal["en", "zh"]
LANGS: tuple[Lang, ...] = ("en", "zh")

_TABLE: dict[str, tuple[str, str]] = {
    # header
    "title": ("Voice cloning", "声音克隆"),
    "tagline": (
        "Give a few seconds of a voice, write a text, hear it said in that voice. Everything stays on this computer.",
        "上传几秒钟的声音，写下文字，听它用这个声音说出来。所有数据都留在本机。",
    ),
    # voice
    "voice_heading": ("1 · Voice", "1 · 声音"),
    "clip": ("Clip: 3–15 s of one person speaking", "音频片段：一个人说话 3–15 秒"),
    "doctor_idle": (
        "One speaker, no music, little echo. wav, mp3, flac, ogg, m4a or webm.",
        "一个人说话，没有音乐，少混响。支持 wav、mp3、flac、ogg、m4a、webm。",
    ),
    "doctor_good": ("Good clip", "片段可用"),
    "doctor_usable": ("Usable, with a remark", "可用，但请注意"),
    "doctor_refused": ("This clip can't be used", "该片段不可用"),
    "transcript": ("Words of the clip (optional)", "片段里说的话（可选）"),
    "transcript_info": ("Giving the clip's exact words brings the voice closer.", "填写片段的原文，声音会更接近本人。"),
    "transcript_placeholder": ("What is said in the clip, word for word", "逐字填写片段里说的内容"),
    "recognise": ("Write down the words (English)", "识别原文（英语片段）"),
    "words_check": (
        "Check them: a wrong word brings the voice no closer.",
        "请核对：有错字的原文不会让声音更接近本人。",
    ),
    "words_before": ("The words before: {words}", "之前填写的内容：{words}"),
    "words_none": (
        "No English was heard in the clip. Type its words, or leave them out.",
        "片段里没有听到英语。请手动填写原文，或留空。",
    ),
    "refine": ("Fit to the voice", "声音拟合"),
    "refine_info": (
        "Done once per clip, then remembered. Full can take a minute or two without a GPU.",
        "每个片段只做一次，之后会记住。没有 GPU 时，“精细”可能需要一两分钟。",
    ),
    "refine_off": ("Off: answers at once", "关闭：立即出声"),
    "refine_fast": ("Fast: closer", "快速：更像"),
    "refine_full": ("Full: closest", "精细：最像"),
    "sample_en": ("Use an English sample", "使用英文示例"),
    "sample_zh": ("Use a Mandarin sample", "使用中文示例"),
    "use_stretch": ("Use the best stretch", "使用最佳片段"),
    "finding_low_rate": (
        "The clip's sample rate is low, so the voice will sound muffled.",
        "采样率偏低（建议 16 kHz 以上），声音会发闷。",
    ),
    "finding_quiet": (
        "The clip is very quiet; record it louder or closer.",
        "片段音量很小，请提高音量或靠近麦克风录制。",
    ),
    "finding_clipped": (
        "The clip is distorted at its peaks; record it with less gain.",
        "片段有削波失真，请降低增益重新录制。",
    ),
    "finding_noisy": (
        "There is noise under the voice; some of it will be copied.",
        "声音里有噪声，克隆时会带上一部分。",
    ),
    "finding_little_speech": (
        "There is little speech in the clip; more gives a better likeness.",
        "片段里说话太少，多说一些会更像。",
    ),
    "finding_stops_mid_sound": (
        "The clip stops in the middle of a sound; leave a short silence at its end.",
        "片段在发音中途结束，请在结尾留一点静音。",
    ),
    "finding_starts_mid_sound": (
        "The clip starts in the middle of a sound; leave a short silence at its start.",
        "片段从发音中途开始，请在开头留一点静音。",
    ),
    "finding_long_silence": ("There is long silence at one end of the clip; trim it.", "片段首尾静音过长，请修剪。"),
    "finding_truncated": ("The file is damaged; only its first part was used.", "文件已损坏，只使用了前面完好的部分。"),
    "finding_picked_channel": (
        "The clip's channels cancel out or are mostly empty; the loudest one was used.",
        "片段的声道相互抵消或几乎为空，已使用音量最大的声道。",
    ),
    # words
    "words_heading": ("2 · Words", "2 · 文字"),
    "text": ("Text to say", "要说的文字"),
    "text_placeholder": ("English or Chinese, or both", "中文、英文或中英混合"),
    "text_in": ("{names} or {last}", "{names}或{last}"),
    "language_zh": ("Chinese", "中文"),
    "language_en": ("English", "英文"),
    "language_ja": ("Japanese", "日文"),
    "language_ko": ("Korean", "韩文"),
    "language_de": ("German", "德文"),
    "language_es": ("Spanish", "西班牙文"),
    "language_fr": ("French", "法文"),
    "language_it": ("Italian", "意大利文"),
    "language_ru": ("Russian", "俄文"),
    "text_info": (
        "A reading can be spelled out: [h][ào] for Mandarin, [M][AY0][N][UW1][T] for English. [pause 0.8s] waits.",
        "可以标注读音：中文写 [h][ào]，英文写 [M][AY0][N][UW1][T]；[pause 0.8s] 表示停顿。",
    ),
    "reading_heading": ("What will be read", "将会读出"),
    "reading_as_typed": ("As typed.", "与输入一致。"),
    "reading_segment": ("part {number}", "第 {number} 段"),
    "reading_pause": ("pause {seconds:.2g} s", "停顿 {seconds:.2g} 秒"),
    "own_heading": ("Pronunciations", "读音表"),
    "own": ("Words and how to read them", "词语与读音"),
    "own_info": (
        "One a line: word = reading. Kept in this browser, used for every text. Tags in a text come first.",
        "每行一个：词 = 读音。保存在本浏览器中，对每段文字生效；文字里的读音标注优先。",
    ),
    "own_placeholder": ("Siobhan = SH IH0 V AO1 N\n行家 = háng jiā", "行家 = háng jiā\nSiobhan = SH IH0 V AO1 N"),
    "kind_speed": ("speed", "语速"),
    "kind_pitch": ("pitch", "音高"),
    "kind_range": ("melody", "语调起伏"),
    "kind_loudness": ("loudness", "音量"),
    "kind_emotion": ("emotion", "情绪"),
    "kind_dialect": ("dialect", "方言"),
    "kind_role": ("role", "角色"),
    "kind_free": ("any wording", "自由描述"),
    "instruct_can": ("This engine can change: {can}.", "当前引擎可以调整：{can}。"),
    "instruct_cannot": (" It can't change: {cannot}.", "不支持：{cannot}。"),
    "instruct": ("How to say it (optional)", "怎么说（可选）"),
    "instruct_placeholder": ("speak gently, slower", "温柔一点，慢一点"),
    "seed": ("Seed", "种子"),
    "seed_placeholder": ("blank = random", "留空 = 随机"),
    "seed_info": ("1–100000000. Same seed, same audio.", "1–100000000，相同种子得到相同音频。"),
    "dice": ("Random", "随机"),
    "keep": ("Keep last", "沿用上次"),
    "speed": ("Speed", "语速"),
    "speed_info": ("1 = as the voice speaks", "1 = 原声语速"),
    "generate": ("Generate", "生成"),
    "stop": ("Stop", "停止"),
    "listen": ("Play while it is made", "边生成边播放"),
    # result
    "result_heading": ("3 · Result", "3 · 结果"),
    "result": ("Audio", "音频"),
    "result_idle": ("The audio and what was done will show up here.", "生成的音频和说明会显示在这里。"),
    "details": ("Details", "详细信息"),
    "examples": ("Examples", "示例"),
    "examples_hint": (
        "Click one to fill in the text; add your clip and press Generate.",
        "点击一行填入文字，再上传片段并点击“生成”。",
    ),
    "picture_alt": ("Waveform and spectrogram of the result", "结果的波形与频谱图"),
    "done_in": ("{duration:.1f} s of audio in {total:.1f} s", "用 {total:.1f} 秒生成 {duration:.1f} 秒音频"),
    "fact_seed": ("Seed", "种子"),
    "fact_rtf": ("RTF", "实时率"),
    "fact_engine": ("Engine", "引擎"),
    "fact_voice": ("Voice", "声音"),
    "fact_saved": ("Saved as", "已保存为"),
    "fact_segments": ("Segments", "分段"),
    "voice_cached": ("remembered", "已记住"),
    "voice_fitted": ("prepared in {seconds:.1f} s", "准备用时 {seconds:.1f} 秒"),
    "warnings": ("Please note", "请注意"),
    # progress
    "queued_next": ("Next in line…", "即将开始…"),
    "queued": ("Waiting: {position} before you", "排队中：前面还有 {position} 个"),
    "progress": ("Progress", "进度"),
    "stage_voice": ("Listening to the clip", "正在分析片段"),
    "stage_measuring": ("Measuring the voice", "正在测量声音"),
    "stage_fitting": ("Fitting the voice to the clip", "正在拟合声音"),
    "stage_judging": ("Checking the fitted voice", "正在检查拟合结果"),
    "stage_speaking": ("Speaking", "正在合成"),
    "stage_loading": ("Loading the engine", "正在加载引擎"),
    "stage_asset": ("Fetching model files", "正在获取模型文件"),
    "stage_other": ("Working", "正在处理"),
    "sent": ("Sending…", "正在提交…"),
    # engine
    "engine_heading": ("Engine and memory", "引擎与内存"),
    "engine_info": (
        "Restart ends the engine's process and starts a new one: all its memory is given back. Unload ends it until "
        "Load, or the next start. What runs is stopped, for everyone, unless Restart lets it finish. What waits stays "
        "in line through a restart; Unload refuses it.",
        "“重启”会结束引擎进程并重新启动，彻底释放内存；“卸载”结束进程，直到再次“加载”。"
        "所有人正在运行的请求都会停止，除非重启前让它们完成；排队的请求在重启后继续，卸载时则被拒绝。",
    ),
    "restart": ("Restart", "重启"),
    "drain": ("Restart only when what runs is done", "等正在运行的请求完成后再重启"),
    "draining": ("Waiting for what runs, then restarting the engine…", "等待正在运行的请求完成，然后重启引擎…"),
    "unload": ("Unload", "卸载"),
    "load": ("Load", "加载"),
    "restarting": ("Restarting the engine…", "正在重启引擎…"),
    "unloading": ("Unloading the engine…", "正在卸载引擎…"),
    "loading": ("Loading the engine…", "正在加载引擎…"),
    "memory_change": (
        "{state}. Memory: {before} before, {after} after.",
        "{state}。内存：之前 {before}，之后 {after}。",
    ),
    "memory_now": ("{state}. Memory: {after}.", "{state}。内存：{after}。"),
    "memory_none": ("none", "无"),
    "memory_main": ("{mb:.0f} MB", "{mb:.0f} MB"),
    "memory_device": ("{mb:.0f} MB + {device:.0f} MB on the GPU", "{mb:.0f} MB + 显存 {device:.0f} MB"),
    "state_ready": ("Ready", "就绪"),
    "state_loading": ("Loading", "加载中"),
    "state_unloaded": ("Unloaded", "已卸载"),
    "state_failed": ("Failed", "加载失败"),
    "status_queue": ("{running} running, {queue} waiting", "运行 {running}，排队 {queue}"),
    "status_gone": ("The server doesn't answer. Is it still running?", "服务器没有响应，是否仍在运行？"),
    # validation
    "need_clip": ("Add a clip first: upload a file or record 3–15 s.", "请先添加音频片段：上传文件或录制 3–15 秒。"),
    "need_text": ("Write what to say: 1 to {limit} characters.", "请填写要说的文字：1 到 {limit} 个字符。"),
    "text_long": (
        "The text has {count} characters; at most {limit} are allowed. Shorten it, or make it in parts.",
        "文字有 {count} 个字符，最多允许 {limit} 个。请缩短，或分几次生成。",
    ),
    "instruct_long": ("{count} characters; at most {limit} are allowed.", "有 {count} 个字符，最多允许 {limit} 个。"),
    "bad_seed": (
        "A whole number from 1 to 100000000, or blank for a random one.",
        "请输入 1 到 100000000 的整数，或留空表示随机。",
    ),
    "bad_speed": ("A number from {low} to {high}.", "请输入 {low} 到 {high} 之间的数字。"),
    # errors by kind: the heading; the measured facts follow
    "error_invalid_request_error": ("Please change the request", "请修改后再试"),
    "error_invalid_prompt": ("The clip can't be used", "该片段不可用"),
    "error_invalid_text": ("The text can't be spoken", "这段文字无法朗读"),
    "error_queue_full": ("The server is busy; try again in a moment", "服务器繁忙，请稍后再试"),
    "error_rate_limited": ("Too many requests; try again in a moment", "请求过于频繁，请稍后再试"),
    "error_too_large": ("That's too large", "内容过大"),
    "error_too_slow": ("The upload was too slow; try again", "上传过慢，请重试"),
    "error_not_found": ("That isn't there any more", "内容已不存在"),
    "error_no_engine": ("The engine isn't ready", "引擎未就绪"),
    "error_timed_out": ("It took too long and was stopped", "用时过长，已停止"),
    "error_cancelled": ("Stopped; nothing was saved", "已停止，没有保存任何内容"),
    "error_out_of_memory": ("Out of memory; try a shorter text", "内存不足，请缩短文字再试"),
    "error_bad_audio": ("The engine gave no usable audio", "引擎没有产生可用的音频"),
    "error_engine_failure": ("The engine failed", "引擎出错"),
    "error_other": ("That didn't work", "操作失败"),
}


def strings(lang: Lang) -> dict[str, str]:
    column = LANGS.index(lang)
    return {key: pair[column] for key, pair in _TABLE.items()}


def say(lang: Lang, key: str, **values: Any) -> str:
    text = _TABLE[key][LANGS.index(lang)]
    return text.format(**values) if values else text


def has(key: str) -> bool:
    return key in _TABLE


def error_heading(lang: Lang, kind: str) -> str:
    key = f"error_{kind}"
    return say(lang, key if has(key) else "error_other")


def language_of(accept_language: str | None) -> Lang:
    """The first language of the browser's list that we speak: `zh-CN,zh;q=0.9,en;q=0.8` -> zh."""
    for part in (accept_language or "").split(","):
        tag = part.split(";")[0].strip().lower()
        if tag.split("-")[0] == "zh":
            return "zh"
        if tag.split("-")[0] == "en":
            return "en"
    return "en"
