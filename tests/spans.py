"""docs/TRACES.md, from the tables of spans and attributes."""

from __future__ import annotations

from shoal.traces.spans import ATTRIBUTES, SPANS

PAGE = """# Spans

`python -m tests.reference` generates this page from the tables in `shoal/traces/spans.py`.
[See where a turn's time goes](operate/traces.md) shows how to switch traces on, and what one looks like.

The spans of one request are one trace, from the client to the acknowledgements of peers. A trace goes on from the caller's:
within the span in which a program calls (`opentelemetry.trace`), from the header `traceparent` over HTTP and of the
WebSockets of Yjs (there also as a parameter of the URL), from `_meta` of MCP, and from the field `trace` of a frame of a
session ([PROTOCOL.md](PROTOCOL.md)). A context that is too long or malformed counts as none. If the caller does not record
its trace, Shoal does not either.

| span | kind | from when to when | attributes |
|---|---|---|---|
"""

OF_ATTRIBUTES = """
## Attributes

No attribute has content: no values, arguments, results, messages of errors or tokens. Each is cut after 128 characters. The
variable `SHOAL_TRACE_NAMES`, at a client and at a node, says which names may be shown: `tools` (the default), `all`, or
`none`. Names of tools and agents are those in the program: do not make them from what users say.

| attribute | it says | shown if `SHOAL_TRACE_NAMES` is |
|---|---|---|
"""
_SHOWN = {"": "", "tools": "`tools` or `all`", "all": "`all`"}


def page() -> str:
    """docs/TRACES.md."""
    spans = [
        f"| `{row.name}` | {row.kind} | {row.when} | {' '.join(f'`{name}`' for name in row.attributes)} |\n" for row in SPANS
    ]
    told = [f"| `{row.name}` | {row.says} | {_SHOWN[row.needs]} |\n" for row in ATTRIBUTES]
    return PAGE + "".join(spans) + OF_ATTRIBUTES + "".join(told)
