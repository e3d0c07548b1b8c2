"""What `rlnorm explain` shows: the terminal's table, and one HTML page with plots.

Only presentation; the numbers come from `diagnosis`.
"""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from rlnorm.explain.diagnosis import Diagnosis, Recording
from rlnorm.files import write_json, write_text
from rlnorm.tracking.page import image, page, png_of, table

LISTED_FLIPS = 20
BINS = 12
COLUMNS = {
    "adv. min": "smallest advantage",
    "q05": "5 % quantile of the advantages",
    "median": "their median",
    "q95": "95 % quantile",
    "max": "largest advantage",
    "no signal": "share of groups whose advantages are all exactly 0",
    "flips": "episodes whose advantage has the other sign than GRPO's",
    "lost/gained": "episodes with a signal under GRPO and none here, and the reverse",
    "r length": "correlation of advantage and length",
    "r |w| length": "correlation of the token weight's size and length",
    "r stratum": "correlation of advantage and stratum",
    "eff. size": "effective sample size, (sum |w|)^2 / sum w^2, as a share of the episodes",
    "bias": "angle between the expected gradient and the reward's own, weights held",
    "noise": "sd / mean of one step's gradient estimate, weights held",
    "bias*": "the same angle with the pipeline applied to every redrawn step",
    "noise*": "the same noise with the pipeline applied to every redrawn step, ± standard error",
}
METHOD = """
<p>Tilt the policy of prompt <i>g</i> towards reward,
π<sub>θ</sub>(y) ∝ π(y) exp(θ<sub>g</sub> r(y)): the score of a response at θ = 0 is
s<sub>i</sub> = r<sub>i</sub> − mean of its group. That makes every episode's gradient one number,
and a step's estimate G<sub>g</sub> = Σ weight<sub>i</sub> s<sub>i</sub> for each prompt,
G = Σ<sub>g</sub> G<sub>g</sub>. A prompt's recorded episodes stand for its policy; a step's
n<sub>g</sub> episodes are n<sub>g</sub> draws from them with replacement. The gradient of the mean
reward is then T<sub>g</sub> = n<sub>g</sub> Var<sub>g</sub>(r), up to a factor that the learning
rate takes up.</p>
<p><b>bias</b> is the angle between the vectors E[G] and T over all prompts: 0° is the reward's own
gradient but for the step size; it does not say that a bias hurts. <b>noise</b> is sd(G) / |E[G]|
of one step. Without a star, each episode carries the weight it got, and both are exact:
E[G<sub>g</sub>] = Σ w s, Var[G] = Σ<sub>g</sub> n<sub>g</sub> Var<sub>g</sub>(w s). With a star,
the pipeline is applied again to every redrawn step, so that the noise of its own means, standard
deviations and moments counts too; that is a mean over draws, and ± is its standard error.</p>
"""


def terminal_table(diagnoses: list[Diagnosis]) -> Table:
    """A column per pipeline, a row per figure: it fits a narrow terminal."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column("", no_wrap=True)
    for diagnosis in diagnoses:
        shown.add_column(diagnosis.name, justify="right", overflow="fold")
    rows = [_figures(diagnosis) for diagnosis in diagnoses]
    for place, name in enumerate(COLUMNS):
        if any(row[place] != "–" for row in rows):
            shown.add_row(name, *(row[place] for row in rows))
    return shown


def write_page(
    path: Path,
    title: str,
    recording: Recording,
    diagnoses: list[Diagnosis],
    refused: dict[str, str],
) -> None:
    """Write the page, and beside it the same figures as JSON."""
    content = {
        "steps": [step.step for step in recording.steps],
        "episodes": len(recording.reward),
        "groups": recording.group.count,
        "pipelines": {d.name: {**d.numbers(), "warnings": d.warnings} for d in diagnoses},
        "refused": refused,
    }
    write_json(path.with_suffix(".json"), content)
    write_text(path, page(title, _body(recording, diagnoses, refused)))


def _figures(d: Diagnosis) -> list[str]:
    """One text per entry of COLUMNS."""
    values = d.numbers()

    def number(name: str, form: str) -> str:
        value = values.get(name)
        return "–" if value is None else format(value, form)

    redrawn = number("redrawn_noise", ".3f")
    if d.redrawn is not None and redrawn != "–":
        redrawn += f" ±{d.redrawn.noise_se:.3f}"
    return [
        *(number(f"advantage_{name}", ".3f") for name in ("min", "q05", "median", "q95", "max")),
        number("zero_signal_group_frac", ".1%"),
        number("sign_flips", "d"),
        f"{d.lost}/{d.gained}",
        *(number(f"{name}_correlation", "+.2f") for name in ("length", "weight_length", "stratum")),
        number("effective_sample_size_frac", ".1%"),
        number("held_bias_degrees", ".1f") + "°" * (values["held_bias_degrees"] is not None),
        number("held_noise", ".3f"),
        number("redrawn_bias_degrees", ".1f")
        + "°" * (values.get("redrawn_bias_degrees") is not None),
        redrawn,
    ]


def _body(recording: Recording, diagnoses: list[Diagnosis], refused: dict[str, str]) -> str:
    steps = [step.step for step in recording.steps]
    span = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps, {steps[0]}–{steps[-1]}"
    parts = [
        f"<p>{len(recording.reward):,} episodes in {recording.group.count:,} groups of {span}; "
        f"{float(recording.equal.double().mean()):.1%} of the groups have equal rewards.</p>"
    ]
    warned = [(d.name, warning) for d in diagnoses for warning in d.warnings]
    warned += [(name, f"cannot take these episodes: {why}.") for name, why in refused.items()]
    if warned:
        lines = "".join(
            f"<li><b>{html.escape(name)}</b>: {html.escape(text)}</li>" for name, text in warned
        )
        parts.append(f"<h2>Worth knowing</h2><ul>{lines}</ul>")
    if diagnoses:
        rows = [[d.name, *_figures(d)] for d in diagnoses]
        parts += [
            "<h2>Figures</h2>",
            table(["", *COLUMNS], rows),
            "<details><summary>What the columns say</summary><ul>"
            + "".join(f"<li><b>{html.escape(k)}</b>: {v}</li>" for k, v in COLUMNS.items())
            + f"</ul></details><h2>How bias and noise are computed</h2>{METHOD}",
        ]
        parts += [
            f"<h2>{title}</h2><p>{text}</p>{image(png, title)}"
            for title, text, png in _plots(recording, diagnoses)
        ]
        parts += [_flips(recording, d) for d in diagnoses if bool(d.flipped.any())]
    return "\n".join(parts)


def _flips(recording: Recording, d: Diagnosis) -> str:
    """The episodes that are pushed the other way than by GRPO, the strongest first."""
    rows = d.flipped.nonzero().squeeze(1)
    rows = rows[d.advantage[rows].abs().argsort(descending=True)][:LISTED_FLIPS]
    listed = []
    for step, span in recording.rows():
        for row in rows[(rows >= span.start) & (rows < span.stop)].tolist():
            inside = row - span.start
            listed.append(
                [
                    str(step.step),
                    str(int(step.batch.group[inside])),
                    f"{float(recording.reward[row]):g}",
                    f"{float(recording.rate[recording.group.index[row]]):.3f}",
                    str(int(recording.length[row])),
                    f"{float(d.advantage[row]):+.3f}",
                    "" if step.response is None else step.response[inside][:200],
                ]
            )
    count = int(d.flipped.sum())
    return f"<h2>{html.escape(d.name)} against GRPO: {count:,} other signs</h2>" + table(
        ["step", "group", "reward", "group's mean", "length", "advantage", "response"],
        listed,
        frozenset({6}),
    )


def _plots(recording: Recording, diagnoses: list[Diagnosis]) -> list[tuple[str, str, bytes]]:
    """(title, what it shows, PNG)."""
    import matplotlib

    matplotlib.use("Agg")
    plots = [
        (
            "Advantages",
            "Their distribution; zeros apart, as a share in the title.",
            _histograms(diagnoses),
        ),
        (
            "Advantage by the group's mean reward",
            "Blue: rewards above the group's mean, orange: below it.",
            _by_rate(recording, diagnoses),
        ),
        (
            "Where the gradient goes",
            "Share of the expected gradient by the groups' mean reward, weights held; dashed is "
            "the reward's own gradient.",
            _shares(recording, diagnoses),
        ),
        (
            "Token weight by length",
            "Mean size of the token weight by response length, over its mean; level means that "
            "a token counts the same in short and in long responses.",
            _by_length(recording, diagnoses),
        ),
        ("Bias and noise", "Lower is better; see above.", _bars(diagnoses)),
    ]
    if len(recording.steps) > 1:
        plots.append(
            (
                "Over the run",
                "Share of groups without signal by step.",
                _by_step(recording, diagnoses),
            )
        )
    return plots


def _panels(count: int) -> tuple[Any, list[Any]]:
    import matplotlib.pyplot as plt

    columns = min(count, 3)
    rows = math.ceil(count / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4 * columns, 3 * rows), layout="constrained", squeeze=False
    )
    flat = list(axes.flat)
    for spare in flat[count:]:
        spare.set_visible(False)
    return figure, flat[:count]


def _axes(width: float, columns: int = 1) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, figsize=(width, 4), layout="constrained")


def _histograms(diagnoses: list[Diagnosis]) -> bytes:
    figure, panels = _panels(len(diagnoses))
    for d, axis in zip(diagnoses, panels, strict=True):
        values = d.advantage[d.advantage != 0].numpy()
        if len(values):
            axis.hist(values, bins=40)
        zeros = float((d.advantage == 0).double().mean())
        axis.set(title=f"{d.name} ({zeros:.0%} zero)", xlabel="advantage", ylabel="episodes")
    return png_of(figure)


def _by_rate(recording: Recording, diagnoses: list[Diagnosis]) -> bytes:
    figure, panels = _panels(len(diagnoses))
    rate = recording.rate[recording.group.index]
    above = recording.reward > rate
    below = recording.reward < rate
    for d, axis in zip(diagnoses, panels, strict=True):
        for which, color in ((above, "tab:blue"), (below, "tab:orange")):
            axis.plot(rate[which], d.advantage[which], ".", ms=3, alpha=0.4, color=color)
        axis.axhline(0, color="gray", lw=0.5)
        axis.set(title=d.name, xlabel="group's mean reward", ylabel="advantage")
    return png_of(figure)


def _shares(recording: Recording, diagnoses: list[Diagnosis]) -> bytes:
    known = recording.rate.isfinite()
    rate = recording.rate[known].numpy()
    edges = np.linspace(rate.min(), rate.max(), BINS + 1) if len(rate) else np.arange(2.0)
    middle = (edges[1:] + edges[:-1]) / 2
    figure, axis = _axes(8)
    lines = {d.name: d.held.expected for d in diagnoses} | {"reward's own": recording.target}
    for name, values in lines.items():
        total, _ = np.histogram(rate, bins=edges, weights=values[known].numpy())
        size = np.abs(total).sum()
        if size:
            own = name == "reward's own"
            axis.plot(middle, total / size, "k--" if own else "o-", ms=3, label=name)
    axis.set(xlabel="group's mean reward", ylabel="share of the expected gradient")
    axis.legend()
    return png_of(figure)


def _by_length(recording: Recording, diagnoses: list[Diagnosis]) -> bytes:
    length = recording.length.double()
    cuts = torch.unique(torch.quantile(_thinned(length), torch.linspace(0, 1, BINS + 1).double()))
    place = torch.bucketize(length, cuts[1:-1], right=True)
    figure, axis = _axes(8)
    for d in diagnoses:
        used = d.weight != 0
        if not bool(used.any()):
            continue
        count = torch.bincount(place[used], minlength=len(cuts)).double()
        sums = torch.bincount(place[used], d.weight[used].abs(), minlength=len(cuts))
        lengths = torch.bincount(place[used], length[used], minlength=len(cuts))
        full = count > 0
        mean = (sums[full] / count[full]) / d.weight[used].abs().mean()
        axis.plot(lengths[full] / count[full], mean, "o-", ms=3, label=d.name)
    axis.set(xlabel="length (tokens)", ylabel="|token weight| / its mean", ylim=(0, None))
    axis.legend()
    return png_of(figure)


def _thinned(values: torch.Tensor) -> torch.Tensor:
    """At most a million of them: torch.quantile takes no more than 16 million."""
    return values[:: max(1, len(values) // 1_000_000)]


def _bars(diagnoses: list[Diagnosis]) -> bytes:
    figure, (left, right) = _axes(10, 2)
    places = np.arange(len(diagnoses))
    for axis, name, label in (
        (left, "bias", "bias (degrees)"),
        (right, "noise", "noise (sd / mean of one step)"),
    ):
        held = [getattr(d.held, name) for d in diagnoses]
        axis.bar(places - 0.2, np.nan_to_num(held, posinf=0.0), 0.4, label="weights held")
        if all(d.redrawn is not None for d in diagnoses):
            redrawn = [getattr(d.redrawn, name) for d in diagnoses]
            errors = [d.redrawn.noise_se if name == "noise" and d.redrawn else 0 for d in diagnoses]
            values = np.nan_to_num(redrawn, posinf=0.0)
            axis.bar(places + 0.2, values, 0.4, yerr=errors, label="pipeline applied again")
        axis.set_xticks(places, [d.name for d in diagnoses], rotation=30, ha="right")
        axis.set(ylabel=label)
        axis.legend()
    return png_of(figure)


def _by_step(recording: Recording, diagnoses: list[Diagnosis]) -> bytes:
    figure, axis = _axes(8)
    steps = [step.step for step in recording.steps]
    for d in diagnoses:
        axis.plot(steps, d.zero_signal_by_step, label=d.name)
    axis.set(xlabel="step", ylabel="groups without signal", ylim=(0, None))
    axis.legend()
    return png_of(figure)
