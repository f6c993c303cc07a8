"""Pushes runs to the Hugging Face Hub, with a model card, and loads them as folders again.

Files that concern this machine alone are not pushed: the lock, the manifest, logs of players.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from jaxrl.artifacts.checkpoint.folder import checkpoints
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.settings.reading import read_yaml
from jaxrl.tools.report.films import last_film
from jaxrl.tools.report.report import write_report
from jaxrl.types import JaxrlError

log = logging.getLogger(__name__)

PRIVATE = ("run.lock", "run_logs/manifest.json", "run_logs/*.log")
"""Files that are not pushed, as patterns of `Path.match` below the run's folder."""
CARD, CURVES, FILM = "README.md", "curves.png", "film"
STEPS = 200
"""Number of decisions in a film that is played for the card."""


class HubError(JaxrlError):
    """A request to the Hub failed. The text says what to do."""


def push(run: Path, repo: str, message: str, *, name: str = "", trust: bool = False) -> str:
    """Make a repository of a run's folder, or a new commit in it, and return its address.

    Args:
      repo: USER/NAME.
      message: of the commit.
      name: of the run, in the model card; empty: that of the folder.
      trust: import code that the folder names, to play a film.

    Raises HubError: huggingface_hub is not installed, there is no run, or the Hub refuses.
    """
    folder = RunFolder(run.parent, run.name)
    if not folder.configuration.is_file():
        raise HubError(f"{run}: is no results folder of a run, expected one with a configuration.yaml")
    with _hub(repo) as hub, TemporaryDirectory(prefix="jaxrl-hub-") as folder_name:
        address = hub.create_repo(repo, exist_ok=True)  # first: a user without the right waits for no pictures
        pictures = _pictures(run, Path(folder_name), trust)
        card = Path(folder_name, CARD)
        card.write_text(model_card(run, repo, name or run.resolve().name, [path.name for path in pictures]), "utf-8")
        files = {path.relative_to(run).as_posix(): path for path in _files(run)}
        files |= {path.name: path for path in (card, *pictures)}
        added = [hub.CommitOperationAdd(place, str(path)) for place, path in sorted(files.items())]
        hub.create_commit(repo, added, commit_message=message)
        return str(address)


def load(repo: str, out: Path, revision: str | None = None) -> None:
    """Write the files of a repository into a new folder. Raises HubError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise HubError(f"--local-dir {out}: is there already. Name a folder that is not, or remove this one.")
    with _hub(repo) as hub:
        hub.snapshot_download(repo, revision=revision, local_dir=out)
    shutil.rmtree(out / ".cache", ignore_errors=True)  # the client's own notes


@contextmanager
def _hub(repo: str) -> Iterator[Any]:
    """Yield the client. Any error that it raises becomes a HubError."""
    if importlib.util.find_spec("huggingface_hub") is None:
        raise HubError("the Hub's client is not installed: pip install 'jaxrl[hub]'")
    import huggingface_hub

    try:
        yield huggingface_hub
    except (JaxrlError, KeyboardInterrupt):
        raise
    except Exception as error:  # any error of the service's own library
        text = " ".join(str(error).split())[:300]
        advice = "check --repo-id (USER/NAME), the network, and that `hf auth login` or HF_TOKEN gives a token"
        raise HubError(f"{repo}: {type(error).__name__}: {text}: {advice}") from error


def _files(run: Path) -> Iterator[Path]:
    for path in sorted(run.rglob("*")):
        place = path.relative_to(run)
        hidden = any(part.startswith(".") for part in place.parts)
        if path.is_file() and not path.is_symlink() and not hidden and not any(map(place.match, PRIVATE)):
            yield path


def _pictures(run: Path, folder: Path, trust: bool) -> list[Path]:
    """Return the curves and a film of a run, as far as they can be made; log failures."""
    pictures = []
    try:
        write_report([run], folder / CURVES)
        pictures.append(folder / CURVES)
    except JaxrlError as error:
        log.warning("The model card has no curves: %s", error)
    film = last_film(run)
    if film is not None:
        return [*pictures, Path(shutil.copy(film, folder / f"{FILM}{film.suffix}"))]
    from jaxrl.tools.watch.film import watch  # imports JAX

    try:
        return [*pictures, watch(None, run=run, out=folder / f"{FILM}.gif", steps=STEPS, trust=trust).out]
    except JaxrlError as error:
        log.warning("The model card has no film: %s", error)
    return pictures


def model_card(run: Path, repo: str, name: str, pictures: Sequence[str]) -> str:
    """Return the text of README.md: what was trained, with which settings, how it went, and how to use it."""
    behaviors = read_yaml(RunFolder(run.parent, run.name).configuration).get("behaviors") or {}
    kinds = sorted({str(behavior.get("trainer_type", "ppo")) for behavior in behaviors.values()})
    tags = ["jaxrl", "ml-agents", "unity", "deep-reinforcement-learning", "reinforcement-learning", *kinds]
    tags += [f"ML-Agents-{behavior}" for behavior in behaviors]
    head = {"library_name": "jaxrl", "pipeline_tag": "reinforcement-learning", "tags": tags}
    steps = {behavior: max((c.step for c in checkpoints(run / behavior)), default=None) for behavior in behaviors}
    lines = [
        "---", yaml.safe_dump(head, sort_keys=False).rstrip(), "---", f"# {name}",
        "Trained with jaxrl, by the configuration below:",
        *(f"- `{key}`: {behavior.get('trainer_type', 'ppo')}" + (f", {steps[key]:,} steps" if steps[key] else "")
          for key, behavior in behaviors.items()),
        "", "## Use", "```sh", f"jaxrl load-from-hf --repo-id={repo} --local-dir=results/{name}",
        f"jaxrl watch --run results/{name}", "```",
        "The `.onnx` files go into the Behavior Parameters of agents in Unity.",
    ]  # fmt: skip
    for title, picture in (("Curves", CURVES), ("Film", FILM)):
        lines += [f"\n## {title}\n![{title}]({file})" for file in pictures if file.startswith(picture)]
    settings = yaml.safe_dump({"behaviors": behaviors}, sort_keys=False).rstrip()
    return "\n".join([*lines, "", "## Settings", "```yaml", settings, "```", ""])
