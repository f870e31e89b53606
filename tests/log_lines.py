"""What follows from the table of events: docs/LOGS.md. `tests.reference` writes it."""

from __future__ import annotations

from itertools import groupby

from shoal.logs.events import EVENTS, FIELDS

PAGE = """# Logs

`python -m tests.reference` generates this page from the table in `shoal/logs/events.py`.

A node writes one line to standard error for each event. `shoal serve --log-format json` writes an object on each line, `text` a
line for people; without it a terminal gets text, and everything else JSON. `--log-level warning` leaves out what is less grave.

```json
{"timestamp": "2026-11-29T17:30:46.123Z", "level": "warning", "event": "peer-refused", "text": "n9:7400 was refused: …",
 "peer": "n9:7400", "remote": "10.0.0.9", "reason": "…", "code": "peer-refused"}
```

- **`event` is stable**: search and alert by it, not by `text`. Beside `timestamp`, `level`, `event` and `text` a line has the
  fields of its event, which the tables below name.
- **`request`** is in each line that belongs to a request, or to work that a request began: the `X-Request-Id` of the answer. On
  the WebSocket of a Python client it is that of the socket and the number of the request on it: `4f1c…-17`.
- **No content and no secrets.** Lines name spaces, objects and members. What they contain, tokens and keys are in none, also
  not if there is a bug: then `error` has the types of the errors, and `frames` where they were raised.
- **Bounded.** Of each event there are at most 60 lines a minute. A line `lines-left-out` tells how many more there were.
- **Nobody is waited for.** What standard error does not take at once is left out, and `lines-unread` tells how much that was.
- **A request that is refused**, with a 404 or a 412 as much as with any other error, is a line `request-refused` at
  `--log-level debug`, and none above: a program that asks whether something is there does nothing wrong. At every level
  `shoal_requests_total` counts answers by code ([METRICS.md](METRICS.md)). A request that succeeds has no line;
  [traces](operate/traces.md) show those.
- What must be done is told by [conditions](CONDITIONS.md); each is a line when it has stood for 4 s, and one when it is over.
- A store in a program of yours logs the same lines through Python's `logging`, as `shoal.AREA`: set that up as you do for other
  libraries. `shoal.logs.lines` has `JsonForm` and `TextForm`, two formatters.
"""


def page() -> str:
    """docs/LOGS.md."""
    parts = [PAGE]
    for area, events in groupby(EVENTS.values(), key=lambda event: event.area):
        parts.append(f"\n## {area}\n\n| event | level | text | fields | |\n|---|---|---|---|---|\n")
        for event in events:
            text = event.text.replace("|", "\\|")
            fields = ", ".join(f"`{field}`" for field in event.fields)
            parts.append(f"| `{event.name}` | {event.level} | {text} | {fields} | {event.meaning} |\n")
    parts.append("\n## Fields\n\n| field | it is |\n|---|---|\n")
    parts += [f"| `{name}` | {meaning} |\n" for name, meaning in FIELDS.items()]
    return "".join(parts)
