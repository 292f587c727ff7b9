"""How the page looks: theme, style sheet, and the one script that keeps the status line true. Nothing from other hosts."""

from __future__ import annotations

import json

import gradio as gr

from cosyvoice_app.web.i18n import say

FONTS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "PingFang SC", "Microsoft YaHei",
         "Noto Sans CJK SC", "Noto Sans", "sans-serif")
MONO_FONTS = ("ui-monospace", "SFMono-Regular", "Consolas", "Liberation Mono", "monospace")


def theme() -> gr.themes.Base:
    return gr.themes.Base(
        primary_hue=gr.themes.colors.indigo,
        secondary_hue=gr.themes.colors.indigo,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_lg,
        font=FONTS,
        font_mono=MONO_FONTS,
    ).set(
        body_background_fill="#f5f6fa",
        body_background_fill_dark="#0e1018",
        block_background_fill="transparent",
        block_border_width="0px",
        block_shadow="none",
        block_padding="0",
        block_label_background_fill="transparent",
        block_label_border_width="0px",
        block_title_text_weight="600",
        input_background_fill="#fbfbfe",
        input_background_fill_dark="#12141f",
        input_border_width="1px",
        input_border_color="#dfe2ee",
        input_border_color_dark="#2b2f42",
        button_primary_background_fill="#4f46e5",
        button_primary_background_fill_hover="#4338ca",
        button_primary_text_color="#ffffff",
        button_large_radius="12px",
        button_small_radius="999px",
    )


CSS = """
.gradio-container { max-width: 1180px !important; margin: 0 auto !important; padding: 20px 20px 8px !important; }
.gradio-container .row { gap: 18px; }
#head { gap: 4px !important; margin-bottom: 4px; }
#status { font-size: .86rem; min-height: 34px; margin-top: 6px; }
.vc-status { display: inline-flex; flex-wrap: wrap; align-items: center; gap: 4px 10px; padding: 5px 13px; border-radius: 999px;
  background: var(--vc-card); border: 1px solid var(--vc-line); color: var(--body-text-color-subdued); }
.vc-status b { color: var(--body-text-color); font-weight: 600; }
.vc-dot { width: 9px; height: 9px; border-radius: 50%; background: #94a3b8; flex: none; }
.vc-dot.ready { background: #16a34a; } .vc-dot.loading { background: #d97706; animation: vc-pulse 1.2s infinite; }
.vc-dot.failed, .vc-dot.gone { background: #dc2626; }
@keyframes vc-pulse { 50% { opacity: .3; } }
:root { --vc-card: #ffffff; --vc-line: #e5e7f0; --vc-soft: #f3f4fb; --vc-good: #15803d; --vc-warn: #b45309; --vc-bad: #b91c1c; }
.dark { --vc-card: #171a26; --vc-line: #2a2e40; --vc-soft: #1e2231; --vc-good: #4ade80; --vc-warn: #fbbf24; --vc-bad: #f87171; }
.vc-card { background: var(--vc-card) !important; border: 1px solid var(--vc-line) !important; border-radius: 16px !important;
  padding: 18px !important; box-shadow: 0 1px 2px rgb(15 18 40 / .04), 0 8px 24px -18px rgb(15 18 40 / .18);
  gap: 14px !important; }
.vc-heading, .vc-heading * { font-size: 1.02rem !important; font-weight: 650 !important; letter-spacing: -0.005em; }
.vc-card .vc-heading p { margin: 0; }
.vc-card .form { background: transparent !important; border: 0 !important; gap: 14px !important; overflow: visible !important;
  box-shadow: none !important; }
#title, #title * { font-size: 1.6rem; font-weight: 700; letter-spacing: -0.018em; line-height: 1.25; color: var(--body-text-color); }
#clip, #result { border: 1px solid var(--vc-line) !important; border-radius: 12px !important; background: var(--vc-soft) !important;
  overflow: hidden; }
#clip { border-style: dashed !important; }
#result .empty { min-height: 76px !important; }
#text textarea, #transcript textarea, #instruct textarea, #seed textarea, #seed input { border-radius: 10px !important; }
#examples thead { display: none; }
#examples td { text-align: left !important; border: 0 !important; }
#examples .label { font-size: .86rem; color: var(--body-text-color-subdued); }
.vc-note { font-size: .86rem; color: var(--body-text-color-subdued); line-height: 1.5; }
.vc-facts { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; }
.vc-fact { padding: 2px 9px; border-radius: 999px; background: var(--vc-soft); font-size: .82rem; white-space: nowrap; }
.vc-fact b { font-weight: 600; } .vc-fact.wide { white-space: normal; overflow-wrap: anywhere; border-radius: 10px; }
.vc-verdict { font-weight: 650; font-size: .88rem; margin-right: 2px; }
.vc-good { color: var(--vc-good); } .vc-warn { color: var(--vc-warn); } .vc-bad { color: var(--vc-bad); }
.vc-list { margin: 7px 0 0; padding: 0 0 0 1.1em; font-size: .86rem; line-height: 1.5; }
.vc-box { border-radius: 12px; padding: 11px 14px; background: var(--vc-soft); border-left: 3px solid var(--vc-line); }
.vc-box.bad { border-left-color: var(--vc-bad); } .vc-box.warn { border-left-color: var(--vc-warn); }
.vc-box p { margin: 3px 0 0; font-size: .9rem; line-height: 1.5; overflow-wrap: anywhere; }
.vc-picture { width: 100%; height: auto; display: block; border-radius: 10px; margin: 2px 0 10px; }
.vc-bar { height: 6px; border-radius: 999px; background: var(--vc-soft); overflow: hidden; margin-top: 9px; }
.vc-bar i { display: block; height: 100%; border-radius: 999px; background: #4f46e5; transition: width .3s; }
.vc-bar.unknown i { width: 32% !important; animation: vc-slide 1.3s ease-in-out infinite alternate; }
@keyframes vc-slide { from { margin-left: 0; } to { margin-left: 68%; } }
#count, #count * { text-align: right; font-size: .8rem; color: var(--body-text-color-subdued);
  font-variant-numeric: tabular-nums; }
#count { margin-top: -10px; min-height: 1.2em; }
#count .over { color: var(--vc-bad) !important; font-weight: 650; }
#chips { gap: 6px !important; flex-wrap: wrap; margin-top: -6px; }
#chips button { min-width: 0 !important; flex: 0 0 auto !important; padding: 3px 11px !important; font-size: .82rem;
  font-weight: 500; border: 1px solid var(--vc-line); background: var(--vc-soft); border-radius: 999px; }
#chips button:hover { border-color: #4f46e5; }
#seed-row { align-items: flex-start; gap: 20px !important; }
#seed-buttons { gap: 6px !important; flex-wrap: nowrap; }
#seed-buttons button { min-width: 0 !important; padding: 3px 12px !important; font-size: .82rem; flex: 0 0 auto !important; }
#seed-buttons { margin-top: -6px; }
button.secondary { background: var(--vc-soft); border: 1px solid var(--vc-line); }
#go { gap: 10px !important; flex-wrap: nowrap; }
#generate { font-weight: 650; min-height: 46px; }
#stop { min-height: 46px; flex: 0 0 110px !important; min-width: 0 !important; display: none; }
body:has(.vc-running) #stop { display: flex; }
body:has(.vc-running) #generate { opacity: .55; pointer-events: none; }
.vc-card .block.vc-plain, .vc-plain { padding: 0 !important; }
footer { opacity: .75; }
@media (max-width: 640px) {
  .gradio-container { padding: 12px 10px 8px !important; }
  .vc-card { padding: 14px !important; border-radius: 14px !important; }
  #title, #title * { font-size: 1.35rem; }
}
"""

_SCRIPT = """
<script>
(() => {
  const gone = %(gone)s;
  const chinese = (navigator.language || "").toLowerCase().startsWith("zh");
  const show = (html) => { const line = document.querySelector("#status-line"); if (line && line.innerHTML !== html) line.innerHTML = html; };
  const poll = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch("page/status", { cache: "no-store" });
        if (answer.ok) show(await answer.text());
      } catch (_) {
        show('<span class="vc-status"><span class="vc-dot gone"></span>' + gone[chinese ? "zh" : "en"] + "</span>");
      }
    }
    setTimeout(poll, 2000);
  };
  poll();
})();
</script>
"""


def head() -> str:
    gone = {"en": say("en", "status_gone"), "zh": say("zh", "status_gone")}
    return _SCRIPT % {"gone": json.dumps(gone)}
