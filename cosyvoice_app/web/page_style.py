"""How the page looks: the theme. Rules are in page.css, scripts in page_head.html and page_player.js."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

CSS_FILE = Path(__file__).with_name("page.css")
HEAD_FILE = Path(__file__).with_name("page_head.html")
PLAYER_FILE = Path(__file__).with_name("page_player.js")
FONTS = (
    "ui-sans-serif",
    "system-ui",
    "-apple-system",
    "Segoe UI",
    "Roboto",
    "PingFang SC",
    "Microsoft YaHei",
    "Noto Sans CJK SC",
    "Noto Sans",
    "sans-serif",
)
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
        block_background_fill_dark="transparent",
        block_label_background_fill_dark="transparent",
        checkbox_label_background_fill="#f3f4fb",
        checkbox_label_background_fill_dark="#1e2231",
        checkbox_label_background_fill_selected="#e6e7fd",
        checkbox_label_background_fill_selected_dark="#2c2f55",
        checkbox_label_border_width="0px",
        checkbox_label_shadow="none",
        slider_color="#4f46e5",
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
