"""Progress of a load on stderr, so that stdout stays the result's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from app.bench.load.record import RequestRecord

Tick = Callable[[RequestRecord], None]


class Bars:
    """`bars.track(title, total)` gives a callback for each finished request; `bars.say(text)` prints a line above."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def track(self, title: str, total: int) -> Tick:
        task = self._progress.add_task(title, total=total, last="")

        def tick(record: RequestRecord) -> None:
            last = f"[red]{record.error[:60]}[/]" if record.error else f"TTFT {record.ttft_s or 0:.3f} s"
            self._progress.update(task, advance=1, last=last)

        return tick

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)


@contextmanager
def progress_bars() -> Iterator[Bars]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[last]}"), console=Console(stderr=True)) as progress:
        yield Bars(progress)
