"""dashboard-page.py DASHBOARD SERVER MOUNT: the panels of the dashboard as a page, drawn from Prometheus's answers to its queries."""

import html
import json
import re
import sys
import time
import urllib.parse
import urllib.request

SECONDS = 60
WIDTH, HEIGHT, LEFT = 485, 110, 62
COLOURS = ["#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#14b8a6", "#ec4899", "#84cc16"]


def answers(server, query, end):
    """The series of a query in the last minute: each with its labels and its points."""
    arguments = {"query": query, "start": end - SECONDS, "end": end, "step": 1}
    with urllib.request.urlopen(f"{server}/api/v1/query_range?{urllib.parse.urlencode(arguments)}") as answer:
        return json.load(answer)["data"]["result"]


def named(legend, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label.group(1), ""), legend)


def text_of(value, unit):
    """A value with its unit, as Grafana names units."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        for factor, name in [(1, "s"), (1e3, "ms"), (1e6, "µs")]:
            if value * factor >= 1 or name == "µs":
                return f"{value * factor:.3g} {name}" if value else "0"
    steps = [(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")] if unit in ("bytes", "Bps") else [(1e6, "M"), (1e3, "k")]
    suffix = {"bytes": "B", "Bps": "B/s", "reqps": "/s", "ops": "/s"}.get(unit, "")
    for size, name in steps:
        if value >= size:
            return f"{value / size:.3g} {name}{suffix}"
    return f"{value:.3g} {suffix}".strip()


def chart(series, unit, end):
    values = [value for _, points in series for _, value in points]
    top = max(values, default=0) or 1
    parts = []
    for share in (0, 0.5, 1):
        y = 8 + HEIGHT * (1 - share)
        parts.append(f'<path d="M{LEFT} {y}h{WIDTH}" stroke="#333842"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{text_of(top * share, unit)}</text>')
    for number, (_, points) in enumerate(series):
        places = [
            f"{LEFT + WIDTH * (1 - (end - at) / SECONDS):.1f},{8 + HEIGHT * (1 - value / top):.1f}" for at, value in points
        ]
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return f'<svg width="{LEFT + WIDTH + 10}" height="{HEIGHT + 16}">{"".join(parts)}</svg>'


def panel_page(panel, server, mount, end):
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
    series = []
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", "10s").replace("$mount", re.escape(mount))
        for one in answers(server, query, end):
            points = [(at, float(value)) for at, value in one["values"] if value != "NaN"]
            series.append((named(target["legendFormat"], one["metric"]), points))
    # A kind of request that nobody made has no line.
    series = [(name, points) for name, points in series if any(value for _, value in points)] or series[:1]
    if panel["type"] == "table":
        drawn = "".join(f'<p class="state">{html.escape(name)}</p>' for name, _ in series)
    else:
        keys = "".join(
            f'<span style="color:{COLOURS[number % len(COLOURS)]}">━ {html.escape(name)}</span> '
            for number, (name, _) in enumerate(series)
        )
        drawn = chart(series, unit, end) + f"<div>{keys}</div>"
    return f'<section><h2>{html.escape(panel["title"])}</h2>{drawn}</section>'


def main():
    dashboard, server, mount = sys.argv[1:]
    with open(dashboard, encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    end = time.time()
    print(
        "<!DOCTYPE html><meta charset=utf-8><style>body{margin:10px;background:#111217;color:#d8d9da;"
        "font:12px 'DejaVu Sans',sans-serif;display:grid;grid-template-columns:1fr 1fr;gap:8px}"
        "section{background:#181b1f;border:1px solid #2c3235;padding:8px 10px}h2{font-size:13px;margin:0 0 6px}"
        "svg text{fill:#9fa7b3;font-size:10px}.state{font-size:22px;color:#10b981}div{font-size:10px}</style>"
    )
    for panel in panels:
        print(panel_page(panel, server, mount, end))


main()
