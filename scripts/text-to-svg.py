"""text-to-svg.py TITLE: the text on standard input, as a terminal shows it, as an SVG on standard output.

Each line gets its width from its number of characters, so columns stay aligned in any monospace font.
"""

import html
import sys

WIDTH, HEIGHT, MARGIN = 8, 15, 14

lines = sys.stdin.read().rstrip("\n").split("\n")
lines = [line.rstrip() for line in lines]
width = max(map(len, lines)) * WIDTH + 2 * MARGIN
height = len(lines) * HEIGHT + 2 * MARGIN
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">')
print(f"<title>{html.escape(sys.argv[1])}</title>")
print(
    "<style>text{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#1f2328;white-space:pre}"
    ".back{fill:#f6f8fa;stroke:#d1d9e0}"
    "@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.back{fill:#0d1117;stroke:#3d444d}}</style>"
)
print(f'<rect class="back" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="6"/>')
for number, line in enumerate(lines):
    # Spaces at the start move the line; others are part of it.
    text = line.lstrip(" ")
    if text:
        x = MARGIN + (len(line) - len(text)) * WIDTH
        y = MARGIN + number * HEIGHT + 13
        print(
            f'<text x="{x}" y="{y}" textLength="{len(text) * WIDTH}" lengthAdjust="spacingAndGlyphs" '
            f'xml:space="preserve">{html.escape(text)}</text>'
        )
print("</svg>")
