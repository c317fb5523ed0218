"""How far the summaries are: a line that changes in a terminal, else a line now and then."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

EVERY_S = 30.0
"""Between lines where there is no terminal."""


@contextmanager
def shown(total: int, usage: Callable[[], Mapping[str, float]]) -> Iterator[Callable[..., None]]:
    """Give a function that is told how many samples are `made` and have `failed`.

    What is known from before is not told, and `total` is without it. `usage` gives tokens and cost;
    what it does not have is not shown.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    began = said = monotonic()
    terminal = sys.stderr.isatty()
    columns = (TextColumn("summarize"), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), disable=not terminal) as progress:
        task = progress.add_task("", total=total or None)

        def tell(made: int, failed: int) -> None:
            nonlocal said
            now, done = monotonic(), made + failed
            if terminal and (now - said > 0.1 or done == total):
                text = _line(made, failed, total, now - began, usage())
                progress.update(task, completed=done, description=text)
                said = now
            elif not terminal and now - said >= EVERY_S:
                text = _line(made, failed, total, now - began, usage())
                print(f"summarize: {text}", file=sys.stderr, flush=True)
                said = now

        yield tell


def _line(made: int, failed: int, total: int, seconds: float, usage: Mapping[str, float]) -> str:
    done = made + failed
    rate = done / seconds if seconds else 0.0
    parts = [f"{done:,} of {total:,}", f"{rate:,.1f}/s", f"{failed:,} failed"]
    if tokens := usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0):
        parts.append(f"{tokens:,.0f} tokens")
    if cost := usage.get("cost", 0):
        parts.append(f"cost {cost:,.2f}")
    if rate and done < total:
        parts.append(f"{_span((total - done) / rate)} left")
    return ", ".join(parts)


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes}:{rest:02}"
