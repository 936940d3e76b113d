"""Structured logs on stderr: text for people or JSON lines, each with the part and what the work is about."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from structlog.typing import FilteringBoundLogger, Processor

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def setup(part: str, *, json: bool, level: str = "info") -> None:
    """Send every line, also those of libraries, through one format that names ``part``."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _name_part(part),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # set up twice in tests; a cached logger would keep the first format
    )
    handler = logging.StreamHandler(sys.stderr)
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[remove_meta, *last]))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[level])
    # These write one line a request of their own; ours carry the request id and theirs do not.
    for name in ("httpx", "httpcore", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _name_part(part: str) -> Processor:
    def add(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event.setdefault("part", part)
        return event

    return add


def get_logger() -> FilteringBoundLogger:
    """Give a logger; call it with an event name and ``action=``-like keywords."""
    logger: FilteringBoundLogger = structlog.get_logger("space")
    return logger


@contextmanager
def bind(**values: str | int | None) -> Iterator[None]:
    """Put ``request=``, ``sandbox=``, ``node=`` on every line written inside, also by tasks started inside."""
    with structlog.contextvars.bound_contextvars(**{k: v for k, v in values.items() if v is not None}):
        yield
