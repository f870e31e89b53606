"""The verdict, on the terminal and as one HTML file that needs nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from rich.console import Console
from rich.markup import escape as plain
from rich.table import Table

from chaos.evidence import Evidence, Options, Recovery
from chaos.judge import Figure, Verdict, Violation
from chaos.picture import draw, duration
from shoal.cli.output import plain as visible

_STRIKES = ("", "fault", "node", "away", "ready", "agents back, at most", "caught up", "equal")
_SHOWN = 20  # Violations on the terminal; the HTML report has all.

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 74rem; padding: 0 1rem; color: #1a1a1a; }
h1 { margin-bottom: 0; } .chaos { margin: 1rem 0; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0 2rem; min-width: 50%; }
th, td { text-align: left; padding: .3rem 1.2rem .3rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
th { white-space: nowrap; } td { min-width: 4ch; max-width: 60rem; overflow-wrap: break-word; }
td:last-child { overflow-wrap: anywhere; min-width: 20ch; }
.kept { color: #126b2e; } .broken { color: #a31515; } .not.run { color: #8a5a00; }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #e6e6e6; } th, td { border-color: #3a3d44; }
  .kept { color: #6fd08c; } .broken { color: #ff8a80; } .not.run { color: #f0c36d; }
}
"""
# Only the last cell of a row breaks words: what breaks them everywhere has no least width, so that a long last
# cell leaves the others one letter a line.


def print_verdict(console: Console, verdict: Verdict) -> None:
    """The figures, then every kind of violation with the first of its culprits."""
    if verdict.not_run:
        console.print(f"[bold yellow]{plain(headline(verdict))}[/]", highlight=False, soft_wrap=True)
        return
    table = Table("figure", "measured", "bound")
    for figure in verdict.figures:
        value = plain(visible(figure.value))
        table.add_row(figure.name, value if figure.met else f"[bold yellow]{value}[/]", figure.bound)
    console.print(table)
    for violation in verdict.violations[:_SHOWN]:
        console.print(f"  {plain(_text(violation))}", highlight=False, soft_wrap=True)
    if len(verdict.violations) > _SHOWN:
        console.print(f"  … and {len(verdict.violations) - _SHOWN:,} more", highlight=False)
    console.print(f"[bold {'green' if verdict.kept else 'red'}]{headline(verdict)}[/]", highlight=False)


def headline(verdict: Verdict) -> str:
    if verdict.not_run:
        return visible(f"not run: {verdict.not_run}")
    if verdict.kept:
        return "kept: nothing acknowledged was lost, nothing invented, all nodes equal, no session went back"
    return f"broken: {len(verdict.violations):,} violations"


def _text(violation: Violation) -> str:
    where = f" on {violation.node}" if violation.node else ""
    return visible(f"invariant {violation.invariant}, {violation.what}{where}: {violation.culprit}")


def to_html(verdict: Verdict, evidence: Evidence) -> str:
    mood = "not run" if verdict.not_run else "kept" if verdict.kept else "broken"
    head = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Shoal under chaos: {mood}</title>",
        f"<style>{_STYLE}</style>",
        f'<h1>Shoal under chaos</h1><p class="{mood}"><strong>{escape(headline(verdict))}</strong></p>',
    )
    if verdict.not_run:
        return "\n".join((*head, _table("Options", ("option", "value"), _options(evidence.options)), "</html>"))
    return "\n".join(
        (
            *head,
            draw(evidence),
            *(f"<p>{escape(visible(text))}</p>" for text in told(evidence)),
            _table("Figures", ("figure", "measured", "bound"), map(_figure_row, verdict.figures)),
            _table("Violations", ("invariant", "what", "node", "object, write or session"), verdict.violations),
            _table("Strikes", _STRIKES, _strikes(evidence)),
            _table("Options", ("option", "value"), _options(evidence.options)),
            "</html>",
        )
    )


def told(evidence: Evidence) -> Iterator[str]:
    """What the picture shows, in words: what was struck, and what users felt."""
    strikes = Counter((recovery.strike.fault, recovery.strike.node) for recovery in evidence.recoveries)
    struck = ", ".join(
        f"{fault} of {node}" + (f" ({times} times)" if times > 1 else "") for (fault, node), times in strikes.items()
    )
    yield f"Struck in {evidence.seconds:,.0f} s: {struck or 'nothing'}."
    whole = evidence.samples.whole()
    if not whole.took:
        return
    errors = ", ".join(f"{count:,} {code}" for code, count in sorted(whole.errors.items())) or "none"
    half, slow = whole.percentile_s(0.5), whole.percentile_s(0.99)
    assert half is not None
    assert slow is not None
    yield (
        f"Users got {whole.writes:,} writes acknowledged and {whole.reads:,} reads answered: half of them "
        f"within {duration(half)}, 99 of 100 within {duration(slow)}. Errors that they were told: {errors}."
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
    lines = ["".join(f"<td>{escape(visible(cell))}</td>" for cell in row) for row in rows]
    if not lines:
        return f"<h2>{title}</h2><p>None.</p>"
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<h2>{title}</h2><div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
