"""Charts of the departure delays by airline and month."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pandas as pd

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
DEPARTURES_MIN = 10  # fewer say nothing about an airline's month
INK = "#222222"
MUTED = "#767676"


def draw(table: pd.DataFrame, airlines: dict[str, str], path: Path) -> None:
    """Departures per year, and heat maps of the mean and 95th percentile delay; airlines by size."""
    departures = table.groupby("carrier")["departures"].sum().sort_values(ascending=False)
    carriers = list(departures.index)
    enough = table[table["departures"] >= DEPARTURES_MIN]
    figure, (bars, mean, p95) = plt.subplots(
        1, 3, figsize=(17, 7.6), width_ratios=[1.15, 3, 3], layout="constrained", facecolor="white"
    )
    figure.suptitle(
        "How late did they leave? New York's departures of 2013, by airline and month",
        fontsize=17, fontweight="bold", color=INK, x=0.01, ha="left",
    )  # fmt: skip
    _bars(bars, departures, airlines)
    _heat(mean, _grid(enough, carriers, "mean_delay"), "Mean departure delay (minutes)", limit=40)
    _heat(
        p95,
        _grid(enough, carriers, "p95_delay"),
        "95th percentile: one in 20 left even later (minutes)",
        limit=180,
    )
    figure.text(
        0.01, -0.03,
        f"{int(table['flights'].sum()):,} flights from EWR, JFK and LGA; {int(departures.sum()):,} departed; "
        f"grey: fewer than {DEPARTURES_MIN} departures in the month. Negative: left early.",
        fontsize=10, color=MUTED,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight", pad_inches=0.25)
    plt.close(figure)


def draw_days(days: pd.DataFrame, path: Path) -> None:
    """Flights per day by airport, and the overall mean delay."""
    figure, (counts, delays) = plt.subplots(
        2, 1, figsize=(13, 6.2), sharex=True, height_ratios=[2, 1], layout="constrained", facecolor="white"
    )
    figure.suptitle(
        "Day by day, as the streaming query wrote it",
        fontsize=17,
        fontweight="bold",
        color=INK,
        x=0.01,
        ha="left",
    )
    by_day = days.pivot_table(index="day", columns="origin", values="flights").fillna(0)
    counts.stackplot(
        by_day.index,
        by_day.T.to_numpy(),
        labels=list(by_day.columns),
        colors=["#3b5b82", "#6f94bd", "#b3c9e0"],
    )
    counts.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False)
    counts.set_title("Flights", fontsize=12, color=INK, loc="left")
    minutes = (days["mean_delay"] * days["departures"]).groupby(days["day"]).sum()
    mean = minutes / days.groupby("day")["departures"].sum()
    delays.plot(mean.index, mean.to_numpy(), color="#c0532f", linewidth=1.2)
    delays.axhline(0, color=MUTED, linewidth=0.6)
    delays.set_title("Mean departure delay (minutes)", fontsize=12, color=INK, loc="left")
    for axes in (counts, delays):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _grid(table: pd.DataFrame, carriers: list[str], column: str) -> pd.DataFrame:
    return table.pivot_table(index="carrier", columns="month", values=column).reindex(
        index=carriers, columns=range(1, 13)
    )


def _bars(axes: Axes, departures: pd.Series, airlines: dict[str, str]) -> None:
    names = [_short(airlines.get(carrier, carrier)) + f"  {carrier}" for carrier in departures.index]
    axes.barh(names, departures, color="#5b7fa6", height=0.62)
    for at, count in enumerate(departures):
        axes.text(count + departures.max() * 0.03, at, f"{count:,}", va="center", fontsize=9, color=INK)
    axes.set_title("Departures", fontsize=12, color=INK, loc="left")
    axes.set_xlim(0, departures.max() * 1.42)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.xaxis.set_visible(False)
    axes.tick_params(left=False, labelsize=10, labelcolor=INK)
    axes.spines[:].set_visible(False)


def _heat(axes: Axes, grid: pd.DataFrame, title: str, *, limit: float) -> None:
    colours = mpl.colormaps["YlOrRd"].with_extremes(bad="#f3f3f3")
    axes.imshow(grid.to_numpy(dtype=float), cmap=colours, vmin=0, vmax=limit, aspect="auto")
    for (row, column), value in _cells(grid):
        dark = value > limit * 0.62
        axes.text(
            column, row, f"{value:.0f}", ha="center", va="center", fontsize=9, color="white" if dark else INK
        )
    axes.set_title(title, fontsize=12, color=INK, loc="left")
    axes.set_xticks(range(12), MONTHS, fontsize=10, color=INK)
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _cells(grid: pd.DataFrame) -> list[tuple[tuple[int, int], float]]:
    values = grid.to_numpy(dtype=float)
    return [
        ((row, column), values[row, column])
        for row in range(values.shape[0])
        for column in range(values.shape[1])
        if values[row, column] == values[row, column]  # not NaN
    ]


def _short(name: str) -> str:
    """An airline's name without generic words."""
    for tail in (" Inc.", " Co.", " Corporation", " Airlines", " Air Lines"):
        name = name.removesuffix(tail)
    return name
