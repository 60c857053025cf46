"""Charts for a slide: one statement as the title, units on the axes, series labelled where they end, nothing else."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's: told apart by people who do not see red and green as two, and on a grey print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A8A8A")
TIER_COLOURS = {"cold": "#8A8A8A", "computed": "#8A8A8A", "l2": "#0072B2", "l1": "#009E73", "l0": "#E69F00"}
_INK, _GREY, _GRID = "#222222", "#666666", "#E3E3E3"
_INCHES, _DPI = (9.6, 5.4), 110

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A finished picture. `name` becomes part of its file's name."""

    name: str
    title: str
    png: bytes


@dataclass(frozen=True, slots=True)
class Words:
    """What is written on a chart. `foot` says where it was measured."""

    title: str
    subtitle: str = ""
    x: str = ""
    y: str = ""
    foot: str = ""


def lines(
    name: str,
    words: Words,
    series: Mapping[str, Points],
    *,
    colours: Mapping[str, str] | None = None,
    log_x: bool = False,
    log_y: bool = False,
    level: tuple[float, str] | None = None,
) -> Chart:
    """One line a series, named at its right end. `level` draws a horizontal line with a name (a target)."""
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator

    def draw(axes: Any) -> None:
        palette = _palette(series, colours)
        for label, points in series.items():
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, color=palette[label], linewidth=2.4, marker="o", markersize=5)
        if log_x:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(FixedLocator(sorted({x for points in series.values() for x, _ in points})))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
        if log_y:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            axes.set_ylim(bottom=0)
        if level is not None:
            axes.axhline(level[0], color=_GREY, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.annotate(level[1], (0.005, level[0]), xycoords=("axes fraction", "data"), va="bottom", color=_GREY)
        _name_ends(axes, {label: points[-1] for label, points in series.items()}, palette)
        axes.grid(axis="y", color=_GRID, linewidth=0.9)

    return _chart(name, words, draw)


def bars(
    name: str,
    words: Words,
    groups: Mapping[str, Mapping[str, float]],
    *,
    colours: Mapping[str, str] | None = None,
    form: str = "{:.2f}",
) -> Chart:
    """group -> series -> value: bars side by side, each with its value above it; one series needs no legend."""
    names = list(dict.fromkeys(label for values in groups.values() for label in values))

    def draw(axes: Any) -> None:
        palette = _palette(names, colours)
        width = 0.8 / len(names)
        for place, label in enumerate(names):
            at = [spot + (place - (len(names) - 1) / 2) * width for spot, v in enumerate(groups.values()) if label in v]
            heights = [values[label] for values in groups.values() if label in values]
            drawn = axes.bar(at, heights, width * 0.92, color=palette[label], label=label)
            axes.bar_label(drawn, [form.format(height) for height in heights], padding=3, color=_INK, fontsize=10)
        axes.set_xticks(range(len(groups)), list(groups))
        axes.yaxis.set_ticks([])  # the values stand above the bars
        axes.margins(y=0.12)
        if len(names) > 1:
            axes.legend(frameon=False, ncols=len(names), loc="upper left", bbox_to_anchor=(0, 1.1))

    return _chart(name, words, draw)


def stacked(
    name: str, words: Words, groups: Mapping[str, Mapping[str, float]], colours: Mapping[str, str] | None = None
) -> Chart:
    """group -> part -> share (0 to 1): horizontal bars, each part with its per cent where there is room."""
    names = list(dict.fromkeys(label for values in groups.values() for label in values))

    def draw(axes: Any) -> None:
        palette = _palette(names, colours)
        left = [0.0] * len(groups)
        for label in names:
            shares = [values.get(label, 0.0) for values in groups.values()]
            drawn = axes.barh(range(len(groups)), shares, 0.62, left=left, color=palette[label], label=label)
            text = [f"{100 * share:.0f} %" if share >= 0.06 else "" for share in shares]
            axes.bar_label(drawn, text, label_type="center", color="black", fontsize=11)
            left = [before + share for before, share in zip(left, shares, strict=True)]
        axes.set_yticks(range(len(groups)), list(groups))
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.legend(frameon=False, ncols=len(names), loc="upper left", bbox_to_anchor=(0, 1.1))

    return _chart(name, words, draw)


def distribution(
    name: str, words: Words, samples: Mapping[str, Sequence[float]], colours: Mapping[str, str] | None = None
) -> Chart:
    """Share of requests that took at most so long, a line for each series."""
    series = {
        label: [(value, 100 * (rank + 1) / len(values)) for rank, value in enumerate(sorted(values))]
        for label, values in samples.items()
        if values
    }

    def draw(axes: Any) -> None:
        palette = _palette(series, colours)
        for label, points in series.items():
            xs, ys = zip(*points, strict=True)
            axes.step([0, *xs], [0, *ys], where="post", color=palette[label], linewidth=2.2, label=label)
        axes.set_ylim(0, 101)
        axes.set_xlim(left=0)
        axes.grid(color=_GRID, linewidth=0.9)
        if len(series) > 1:
            axes.legend(frameon=False, loc="lower right")

    return _chart(name, words, draw)


def _palette(names: Mapping[str, Any] | Sequence[str], given: Mapping[str, str] | None) -> dict[str, str]:
    return {name: (given or {}).get(name, COLOURS[place % len(COLOURS)]) for place, name in enumerate(names)}


def _name_ends(axes: Any, ends: Mapping[str, tuple[float, float]], palette: Mapping[str, str]) -> None:
    """Write each series' name beside its last point, moved apart where two would overlap."""
    place = {label: axes.transData.transform(point)[1] for label, point in ends.items()}
    lowest = float("-inf")
    for label in sorted(ends, key=lambda each: place[each]):
        lowest = max(place[label], lowest + 17.0)
        shift = (lowest - place[label]) * 72 / _DPI
        axes.annotate(
            label, ends[label], (9, shift), textcoords="offset points", va="center", color=palette[label], weight="bold"
        )


def _chart(name: str, words: Words, draw: Callable[[Any], None]) -> Chart:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"font.size": 12, "font.family": "DejaVu Sans", "text.color": _INK, "axes.labelcolor": _GREY}):
        figure = Figure(figsize=_INCHES, dpi=_DPI, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0.09, 0.15, 0.76, 0.63))
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(colors=_GREY, length=0)
        axes.set_xlabel(words.x)
        axes.set_ylabel(words.y)
        draw(axes)
        figure.text(0.03, 0.93, words.title, fontsize=18, weight="bold", va="center")
        figure.text(0.03, 0.865, words.subtitle, fontsize=12, color=_GREY, va="center")
        figure.text(0.03, 0.025, words.foot, fontsize=8, color=_GREY, va="center")
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    return Chart(name, words.title, _small(out))


def _small(png: io.BytesIO) -> bytes:
    """With a palette, which a chart's few colours fit into: a third of the size."""
    from PIL import Image

    out = io.BytesIO()
    Image.open(png).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(out, "png", optimize=True)
    return out.getvalue()
