"""The verdict, on the terminal and as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from rich.console import Console
from rich.markup import escape as plain
from rich.table import Table

from chaos.evidence import Evidence, Options, Recovery
from chaos.judge import Figure, Verdict, Violation

_SHOWN = 20  # Violations on the terminal; the HTML report has all.

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 2rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top; overflow-wrap: anywhere; }
.kept { color: #126b2e; } .broken { color: #a31515; }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #e6e6e6; } th, td { border-color: #3a3d44; }
  .kept { color: #6fd08c; } .broken { color: #ff8a80; }
}
"""


def print_verdict(console: Console, verdict: Verdict) -> None:
    """The figures, then every kind of violation with the first of its culprits."""
    table = Table("figure", "measured", "bound")
    for figure in verdict.figures:
        value = plain(figure.value)
        table.add_row(figure.name, value if figure.met else f"[bold yellow]{value}[/]", figure.bound)
    console.print(table)
    for violation in verdict.violations[:_SHOWN]:
        console.print(f"  {plain(_text(violation))}", highlight=False, soft_wrap=True)
    if len(verdict.violations) > _SHOWN:
        console.print(f"  … and {len(verdict.violations) - _SHOWN:,} more", highlight=False)
    console.print(f"[bold {'green' if verdict.kept else 'red'}]{headline(verdict)}[/]", highlight=False)


def headline(verdict: Verdict) -> str:
    if verdict.kept:
        return "kept: nothing acknowledged was lost, nothing invented, all nodes equal, no session went back"
    return f"broken: {len(verdict.violations):,} violations"


def _text(violation: Violation) -> str:
    where = f" on {violation.node}" if violation.node else ""
    return f"invariant {violation.invariant}, {violation.what}{where}: {violation.culprit}"


def to_html(verdict: Verdict, evidence: Evidence) -> str:
    mood = "kept" if verdict.kept else "broken"
    return "\n".join(
        (
            f"<!doctype html><html lang=en><meta charset=utf-8><title>Shoal under chaos: {mood}</title>",
            f"<style>{_STYLE}</style>",
            f"<h1>Shoal under chaos</h1><p class={mood}><strong>{escape(headline(verdict))}</strong></p>",
            _table("Figures", ("figure", "measured", "bound"), map(_figure_row, verdict.figures)),
            _table("Violations", ("invariant", "what", "node", "object, write or session"), verdict.violations),
            _table(
                "Strikes",
                ("", "fault", "node", "away", "ready", "agents back, at most", "caught up", "equal"),
                _strikes(evidence),
            ),
            _table("Options", ("option", "value"), _options(evidence.options)),
            "</html>",
        )
    )


def _figure_row(figure: Figure) -> Sequence[str]:
    return (figure.name, figure.value if figure.met else f"{figure.value} (missed)", figure.bound)


def _strikes(evidence: Evidence) -> Iterator[Sequence[str]]:
    for nth, recovery in enumerate(evidence.recoveries, 1):
        strike = recovery.strike
        away, ready = _seconds(strike.over_s - strike.began_s), _seconds(strike.over_s - strike.lifted_s)
        healed, equal = _seconds(recovery.healed_s), _seconds(recovery.equal_s)
        yield (str(nth), strike.fault, strike.node, away, ready, _slowest(recovery), healed, equal)


def _slowest(recovery: Recovery) -> str:
    if None in recovery.back_s:
        return "never"
    return _seconds(max((each for each in recovery.back_s if each is not None), default=0.0))


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


def _options(options: Options) -> Iterator[Sequence[str]]:
    for name in options.__struct_fields__:
        yield (name, str(getattr(options, name)))


def _table(title: str, columns: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    if not lines:
        return f"<h2>{title}</h2><p>None.</p>"
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return f"<h2>{title}</h2><table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
