"""Logging of a served node on standard error: coloured lines on a terminal, otherwise JSON."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

import structlog


def configure(level: str) -> None:
    """Set up structlog, and give the standard library's loggers (aiohttp's) the same form; `level` is one of LOG_LEVELS."""
    least = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(least),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(human=sys.stderr.isatty())],
        )
    )
    logging.basicConfig(level=least, handlers=[handler], force=True)


def warn(warnings: Iterable[str]) -> None:
    """Log what is odd about how this process was started, but does not keep it from starting."""
    log = structlog.get_logger("shoal")
    for each in warnings:
        log.warning("environment", reason=each)


def _rendering(*, human: bool) -> list[structlog.typing.Processor]:
    if human:
        return [structlog.dev.ConsoleRenderer()]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
