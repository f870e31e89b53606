"""Write what follows from the code: docs/API.md, docs/CONDITIONS.md, docs/ERRORS.md, docs/LOGS.md, docs/REQUESTS.md,
docs/MODULES.md, docs/TRACES.md, docs/decisions/README.md, deploy/prometheus/shoal.rules.yml,
the listings of docs/PROTOCOL.md, the tables of docs/VERIFICATION.md, shoal/cli/summary.json, shoal/blocking.pyi and, if they
are stale, clients/js/types.

Run `python -m tests.reference` after a change of signatures, docstrings, errors, commands, decisions, of what a test answers,
or of the JavaScript client. The types of that client are written by TypeScript, which needs npm.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer.main

from shoal import errors, public
from shoal.api.http import problems
from shoal.cli import main
from shoal.cli.derived import BY_HAND, derived_commands
from shoal.client.arguments import of_part
from shoal.errors import ShoalError
from shoal.workflows.streams.decisions import StreamGone
from tests import blocking, conditions, log_lines, metrics, operations, spans, verification
from tests.clients.js import description as javascript
from tests.protocol import listing

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

ERRORS = """# Errors

`python -m tests.reference` generates this page from `shoal/errors.py`.

Every error that Shoal raises on purpose is a `shoal.errors.ShoalError`. Its text says what happened, whether anything
was written, and what to do. Its attributes:

- `error.written`: `"no"`, `"yes"`, or `"unknown"` if the write may or may not have been applied. The table shows the
  default of the class; a single error may differ. After a bug in a node (`ShoalError` itself, code `error`) it is
  `"unknown"`.
- `error.retryable`: whether the same call, unchanged, may succeed later or on another node. It is true for `Retryable`
  and its subclasses. If `written` is `"unknown"`, repeat the call with the same idempotency key, so that it is applied
  once.
- `error.message`: the text. `error.detail`: further values, by name. `error.code` and `error.status`: the name of the
  class in problem documents and on the wire, and its HTTP status.

```python
try:
    await thread.save(state, key="turn-7")
except shoal.errors.Retryable as error:
    ...  # Wait (error.detail.get("retry_after_s") seconds, if given), then save again with key="turn-7".
except shoal.errors.Conflict:
    ...  # The state has moved on: load it and decide again.
```

The client retries by itself, for up to `request_timeout_s`, if that is safe: a call that did not reach a node, a write
(every write has a key), a stream that broke. If no attempt succeeds, it raises the last error. Over HTTP a problem
document has the members `code`, `written` and `retryable`, and the details as further members; 429 and 503 come with
`Retry-After`.
"""

HTTP = """
## Over HTTP alone

The node rejects these requests before it handles them. Nothing was written, and the same request will be rejected again.

| code | status | when |
|---|---|---|
"""


def described() -> Iterator[tuple[type[ShoalError], int, str]]:
    """Every class of the module with its depth in the tree and its docstring, in the order in which the classes stand."""
    yield ShoalError, 0, "The root of the tree."
    for error in errors.BY_CODE.values():
        if error is not ShoalError:
            yield error, len(error.__mro__) - len(ShoalError.__mro__), " ".join((error.__doc__ or "").split())


def errors_page() -> str:
    lines = [ERRORS]
    header = ["| class | code | status | meaning | written | retry |", "|---|---|---|---|---|---|"]
    lines += header
    for error, depth, meaning in described():
        text = meaning.replace("|", "\\|")
        indent = "&nbsp;" * 3 * depth
        retry = "yes" if error.retryable else "no"
        lines.append(f"| {indent}`{error.__name__}` | `{error.code}` | {error.status} | {text} | {error.written} | {retry} |")
    lines.append(HTTP.rstrip())
    over_http = [error for _, error in inspect.getmembers(problems, _is_of_http)] + [StreamGone]
    for error in sorted(over_http, key=lambda error: (error.status, error.code)):
        text = " ".join((error.__doc__ or "").split())
        lines.append(f"| `{error.code}` | {error.status} | {text} |")
    return "\n".join(lines) + "\n"


API = """# The Python API

`python -m tests.reference` generates this page from signatures and docstrings. It is an index: the docstrings say more,
and [THREADS.md](THREADS.md), [DOCUMENTS.md](DOCUMENTS.md), [NATIVE.md](NATIVE.md), [ITEMS.md](ITEMS.md) and
[WATCHING.md](WATCHING.md) explain with examples. Errors are in [ERRORS.md](ERRORS.md), LangGraph's saver and store in
[LANGGRAPH.md](LANGGRAPH.md), the testing kit in [TESTING_AGENTS.md](TESTING_AGENTS.md).

All names are in `shoal`. With `shoal.sync.open` and `shoal.sync.connect` the same methods block: leave out `await`,
and write `for` and `with` instead of `async for` and `async with`.

## Functions
"""

FIRST = ("Store", "Space", "Thread", "Checkpoint", "Journal", "Document")


def api_page() -> str:
    lines = [API]
    members = {name: getattr(public, name) for name in public.__all__}
    lines += [f"- {_call(found, name)}" for name, found in members.items() if inspect.isfunction(found)]
    classes = [name for name, found in members.items() if inspect.isclass(found)]
    for name in sorted(classes, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name.lower())):
        found = members[name]
        said = (found.__doc__ if _says_something(found) else "") or ""
        lines += ["", f"## {name}", _first_sentence(said), ""]
        lines += [f"- {line}" for line in _members(found)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _says_something(found: type) -> bool:
    """Whether a docstring is the author's, not what dataclasses and NamedTuples make up."""
    return not (found.__doc__ or "").startswith(f"{found.__name__}(")


def _members(found: type) -> Iterator[str]:
    """Its fields, then its properties and methods: its own first, then those of the classes that it is made of."""
    seen: set[str] = set()
    fields = getattr(found, "__struct_fields__", None) or getattr(found, "__dataclass_fields__", None) or ()
    for name in fields or getattr(found, "_fields", ()):
        if not name.startswith("_"):
            seen.add(name)
            yield f"`{name}`"
    for base in found.__mro__:
        if not base.__module__.startswith("shoal."):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            function = getattr(base, name) if isinstance(member, of_part) else getattr(member, "__func__", member)
            if isinstance(member, property):
                yield f"`{name}`{_said(member)}"
            elif inspect.isfunction(function):
                yield _call(function, name)
            else:
                continue
            seen.add(name)


def _call(function: Callable[..., Any], name: str) -> str:
    signature = inspect.signature(function)
    parts, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default)}"
        parts.append(f"{stars}{parameter.name}{default}")
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter is _last_positional(signature):
            parts.append("/")
    gives = "" if signature.return_annotation is signature.empty else str(signature.return_annotation).replace("requests.", "")
    before = "await " if inspect.iscoroutinefunction(function) else ""
    before = "async for … in " if gives.startswith(("AsyncIterator[", "AsyncGenerator[")) else before
    arrow = "" if gives in ("", "None") else f" → {gives}"
    return f"`{before}{name}({', '.join(parts)}){arrow}`{_said(function)}"


def _last_positional(signature: inspect.Signature) -> inspect.Parameter | None:
    found = [each for each in signature.parameters.values() if each.kind is each.POSITIONAL_ONLY]
    return found[-1] if found else None


def _default(value: object) -> str:
    return "…" if " at 0x" in repr(value) or len(repr(value)) > 24 else repr(value)


def _said(documented: object) -> str:
    sentence = _first_sentence(getattr(documented, "__doc__", "") or "")
    return f": {sentence}" if sentence else ""


def _first_sentence(text: str) -> str:
    paragraph = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    if paragraph.startswith("Raises:"):
        return ""
    found = re.match(r"(.+?\.)(?: |$)", paragraph)
    return re.sub(r":$", ".", found[1] if found else paragraph).replace("<", "&lt;")


def _is_of_http(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, ShoalError) and found.__module__ == problems.__name__


MODULES = """# The modules

`python -m tests.reference` generates this page from the first lines of the modules of `shoal`. Most modules say more there:
which laws hold in them. [ARCHITECTURE.md](ARCHITECTURE.md) explains how they fit together.
"""


def modules_page() -> str:
    """Each package with its first paragraph, and each of its modules with theirs."""
    lines = [MODULES]
    packages = {path.parent for path in (ROOT / "shoal").rglob("*.py")}
    for package in sorted(packages):
        lines += [f"## {package.relative_to(ROOT).as_posix()}", first_paragraph(package / "__init__.py"), ""]
        modules = sorted(path for path in package.glob("*.py") if path.stem != "__init__")
        lines += [f"- `{path.stem}`: {first_paragraph(path)}" for path in modules]
        lines += [""] * bool(modules)
    return "\n".join(lines).rstrip() + "\n"


def first_paragraph(module: Path) -> str:
    """The first paragraph of a module's docstring, in one line; none without a docstring."""
    said = ast.get_docstring(ast.parse(module.read_text())) or ""
    return " ".join(said.split("\n\n")[0].split())


DECISIONS = """# Decisions

Choices that a reader of the code would question, each with its reasons and with what was rejected. `python -m tests.reference`
writes this list.

A new choice gets the next number, which is never used again. Where a sentence is enough, it stands in the first lines of the
module that it explains, as those of most choices do: numbers that are missing here were folded into their modules.

"""


def decisions_page() -> str:
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    titles = [(page, page.read_text().partition("\n")[0].lstrip("# 0123456789:.")) for page in pages]
    return DECISIONS + "".join(f"- [{page.stem[:4]}]({page.name}): {title[:1].upper()}{title[1:]}\n" for page, title in titles)


def summary() -> str:
    """What `shoal --help` lists, and which module of `shoal.cli` has it."""
    has = {name: module for module in main.MODULES for name in typer.main.get_group(main.app_of([module])).commands}
    lines = []
    for name, command in typer.main.get_group(main.app).commands.items():
        text = " ".join((command.help or "").split("\n\n")[0].split())
        panel = str(getattr(command, "rich_help_panel", "") or "")
        lines.append(json.dumps(main.Summary(name, has[name], panel, text), ensure_ascii=False))
    return "[\n  " + ",\n  ".join(lines) + "\n]\n"


_COMMANDS = "\n## All commands\n"


def terminal_page() -> str:
    """The prose of docs/TERMINAL.md as it is, and all commands."""
    prose = (DOCS / "TERMINAL.md").read_text().partition(_COMMANDS)[0]
    about = (
        "`python -m tests.reference` generates this list. Commands with a \\* follow from the declarations of operations "
        "([REQUESTS.md](REQUESTS.md)): their arguments and options are the fields of the request, and with `-o json` they "
        "print the reply as REST does. What is written by hand has its reason below.\n\n"
    )
    derived = {cli.command for _, cli in derived_commands()}
    rows = ["| command | |", "|---|---|"]
    for name, command in _commands(typer.main.get_group(main.app)):
        told = " ".join((command.help or "").split("\n\n")[0].split()).replace("|", "\\|")
        mark = "\\*" if name in derived else ""
        rows.append(f"| `{name}`{mark} | {told} |")
    reasons = [f"- {', '.join(f'`{name}`' for name in names)}: {reason}." for reason, names in BY_HAND.items()]
    return f"{prose}{_COMMANDS}{about}{chr(10).join(rows)}\n\nBy hand:\n{chr(10).join(reasons)}\n"


def _commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, *path, name)
        else:
            yield " ".join([*path, name]), command


PAGES = {
    "TERMINAL.md": terminal_page,
    "API.md": api_page,
    "CONDITIONS.md": conditions.page,
    "LOGS.md": log_lines.page,
    "METRICS.md": metrics.page,
    "TRACES.md": spans.page,
    "../deploy/prometheus/shoal.rules.yml": conditions.rules,
    "../deploy/grafana/shoal.json": metrics.board,
    "ERRORS.md": errors_page,
    "decisions/README.md": decisions_page,
    "MODULES.md": modules_page,
    "PROTOCOL.md": listing.page,
    "REQUESTS.md": operations.page,
    "VERIFICATION.md": verification.page,
}


def write() -> None:
    main.SUMMARY.write_text(summary())
    blocking.STUB.write_text(blocking.stub())
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
    if not javascript.SOURCES.exists() or javascript.SOURCES.read_text() != javascript.sources():
        subprocess.run([javascript.CLIENT / "build.sh"], env={**os.environ, "PYTHON": sys.executable}, check=True)


if __name__ == "__main__":
    write()
