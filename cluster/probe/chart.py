"""The sweep as a picture."""

from pathlib import Path
from typing import Any

from app.errors import ClusterError


def draw(report: dict[str, Any], path: Path) -> Path:
    """Time to first token over prompt length: cold, from L2, from L0. Needs the extra `bench` (matplotlib)."""
    try:
        import matplotlib
    except ImportError:
        raise ClusterError(
            "the chart needs matplotlib: install the extra `bench`; the JSON is written already"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = report["ttft"]
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for key, label in (
        ("cold_s", "computed (node A)"),
        ("l2_s", "from L2 (node B)"),
        ("l0_s", "from L0 (node B again)"),
    ):
        axes.plot([row["tokens"] for row in rows], [row[key] for row in rows], marker="o", label=label)
    axes.set_xlabel("prompt tokens")
    axes.set_ylabel("time to first token, s")
    axes.set_title(f"{report['model']}: what one node computed, another reads")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path
