"""The shell of every HTML page: one file, no network, light and dark. No content lives here."""

from __future__ import annotations

import base64
import html
import io
from typing import Any

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; background: white; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
td, th { padding: .2rem .8rem; text-align: right; vertical-align: top; }
td:first-child, th:first-child, td.text, th.text { text-align: left; }
th, td { border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
pre { overflow-x: auto; border: 1px solid gray; padding: 1rem; }
td.text { font-family: ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def page(title: str, body: str) -> str:
    """A whole document around `body`, which is HTML already; `title` is plain text."""
    name = html.escape(title)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<style>{STYLE}</style></head><body>
<h1>{name}</h1>
{body}
</body></html>
"""


def table(header: list[str], rows: list[list[str]], text: frozenset[int] = frozenset()) -> str:
    """A table of plain texts; the columns of `text` are left-aligned and keep their spaces."""

    def cells(kind: str, row: list[str]) -> str:
        return "".join(
            f"<{kind}{' class=text' if place in text else ''}>{html.escape(cell)}</{kind}>"
            for place, cell in enumerate(row)
        )

    lines = [f"<tr>{cells('th', header)}</tr>", *(f"<tr>{cells('td', row)}</tr>" for row in rows)]
    return f"<div class=wide><table>{''.join(lines)}</table></div>"


def image(png: bytes, description: str) -> str:
    """A PNG inside the page."""
    data = base64.b64encode(png).decode()
    return f'<img alt="{html.escape(description)}" src="data:image/png;base64,{data}">'


def png_of(figure: Any) -> bytes:
    """A matplotlib figure as PNG; the figure is closed."""
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    plt.close(figure)
    return buffer.getvalue()
