"""The results folder of one run: `<results_dir>/<run_id>/`, its checks before anything is written, and its paths.

Layout as in ML-Agents, with folders in place of its .pt files (see checkpoint/folder.py):

    configuration.yaml                         all options, written at the end
    <Behavior>.onnx                            policy of the last checkpoint
    <Behavior>/<Behavior>-<step>.onnx          policy of each kept checkpoint
    ...-member0.onnx, ...                      instead of both, where each member of a team has a policy of its own
    <Behavior>/<Behavior>-<step>/  checkpoint  training state, and which one is the latest
    <Behavior>/<Behavior>-best, -best.onnx     state and policy of the best moment, with keep_best
    <Behavior>/events.out.tfevents.*           TensorBoard; of several seeds in <Behavior>/seed_<number>/
    <Behavior>/metrics.csv                     the same numbers as a table, likewise
    run_logs/timers.json, training_status.json, Player-<worker>.log
    run_logs/manifest.json                     source, packages and machine of each start of the run
    run.lock                                   the process that writes here, while it does

With --force ML-Agents writes over the old run in place, file by file. Here the old run stays whole until training
really begins (`begin`), and is then removed: a start-up that fails costs nothing, no stale file mixes with new ones.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from jaxrl import unfinished
from jaxrl.artifacts import files
from jaxrl.artifacts.checkpoint import folder as checkpoints
from jaxrl.artifacts.checkpoint.document import CheckpointError
from jaxrl.artifacts.lock import RunLock, keep
from jaxrl.artifacts.names import RunFolderError, behavior_name, check_behavior_size, check_run_names, check_together
from jaxrl.artifacts.status import DAMAGED
from jaxrl.settings import CheckpointSettings

EVENTS = "events.out.tfevents.*"
METRICS_TABLE = "metrics.csv"
"""Table of metrics beside the event files."""
SEEDS = ("seed_*", "exploiter_*")
"""Folders of events below `<Behavior>/`, one per seed, in a run with several; the second ones in a league."""
POPULATION = "population.csv"
"""Table, in the run's folder, of which member of a population learned from which."""
MIN_FREE_BYTES = 32 * 2**20  # below this the first checkpoint and event files would hardly fit

_FLAGS = "Choose another --run-id, continue the old run with --resume, or overwrite it with --force."
_MEND_LINK = "Mend or delete the link, or choose another --run-id or --results-dir."
_NONE: Mapping[str, None] = MappingProxyType({})
_log = logging.getLogger(__name__)


def event_files(folder: Path) -> list[Path]:
    """Return the event files directly in `folder`, by name.

    Unity lays a `.meta` file beside each, where a results folder stands in the Assets of a project.
    """
    return sorted(path for path in folder.glob(EVENTS) if path.suffix != ".meta")


def only_evaluates(options: CheckpointSettings) -> bool:
    """Return whether a run is only played (--inference with --resume): its folder stays as it is, bit for bit."""
    return options.inference and options.resume


def seed_folders(behavior: Path) -> list[Path]:
    """Return the folders of `SEEDS` that exist."""
    return [path for seed in SEEDS for path in behavior.glob(seed) if path.is_dir()]


class RunFolder:
    """Paths of one run, and the two moments at which its folder changes: `prepare` and `begin`."""

    def __init__(self, results_dir: str | Path, run_id: str) -> None:
        self.results_dir = Path(results_dir)
        self.run_id = run_id
        self.path = self.results_dir / run_id
        self.logs = self.path / "run_logs"
        self.configuration = self.path / "configuration.yaml"
        self.timers = self.logs / "timers.json"
        self.status = self.logs / "training_status.json"

    def behavior(self, behavior_id: str) -> Path:
        """Return the folder of a behavior and all its teams. Raises RunFolderError, as `check`."""
        name = behavior_name(behavior_id)
        check_behavior_size(self.path, name)
        return self.path / name

    def final_onnx(self, behavior_id: str) -> Path:
        """Return the run-level ONNX file, a copy of the last checkpoint's."""
        return self.path / f"{behavior_name(behavior_id)}.onnx"

    def holds_results(self) -> bool:
        """Return whether the folder holds results worth keeping; player logs of a failed start-up do not count."""
        marks = ("configuration.yaml", "*.onnx", "run_logs/t*.json", "*/*.onnx", "*/*.pt")
        return any(True for mark in marks for _ in self.path.glob(mark)) or bool(self._behaviors())

    @contextmanager
    def claimed(self, options: CheckpointSettings, behaviors: Mapping[str, str | None] = _NONE) -> Iterator[None]:
        """Check that the run may start as `options` ask, and hold its folder alone until the end of the block.

        An evaluation claims nothing. `behaviors`: the `init_path` of each that is listed. Nothing is left of a folder
        in which nothing was written. Raises RunFolderError, RunLockedError or another ArtifactError before anything is
        written.
        """
        asked = (options.resume, options.force, options.initialize_from, behaviors)
        self.check(*asked, writes=False)  # checks that need no folder
        if only_evaluates(options):
            yield
            return
        if options.resume:
            self._refuse_links_out()
        with RunLock(self.path):
            self.check(*asked)  # once more: another run may have come and gone
            try:
                yield
            finally:
                with suppress(OSError):  # it is there, and players or the run have written into it
                    self.logs.rmdir()

    def keep(self) -> None:
        """Call before writing to a claimed folder: one that was deleted is claimed anew. Raises RunLockedError."""
        keep(self.path)

    def check(
        self,
        resume: bool = False,
        force: bool = False,
        initialize_from: str | None = None,
        behaviors: Mapping[str, str | None] = _NONE,
        *,
        writes: bool = True,
    ) -> None:
        """Raise ArtifactError, mostly a RunFolderError, when the run cannot start as asked. Writes nothing that stays.

        `behaviors`, listed in the YAML, each with its `init_path`: without one, it needs a checkpoint in the run
        `initialize_from`; what is resumed needs neither. A folder that holds only the logs of a failed start-up may be
        used again without flags (ML-Agents refuses it). A run that is only evaluated (not `writes`) may lie where
        nothing can be written.
        """
        check_run_names(self.results_dir, self.run_id)
        with files.reported(self.path):  # that may lie below a folder that may not be entered
            self._check_folders(force)
            if resume:
                self._check_resume()
            elif self.holds_results() and not force:
                raise RunFolderError(f"{self.path} already holds a run. {_FLAGS}")
        for name in behaviors:
            self.behavior(name)
        check_together(behaviors)
        if initialize_from is not None:
            self._check_source(initialize_from)
        for name, path in () if resume else behaviors.items():
            self._check_start(name, initialize_from, path)
        if writes:
            self._check_places(behaviors)
            self._check_writable()

    def check_sources(self, options: CheckpointSettings, starts: Iterable[str | None]) -> None:
        """Raise RunFolderError if --force deletes, with the first behavior that appears, what another one starts from.

        Of a loop that meets behaviors one by one; `starts`: the `init_path` of each, and of those that are not listed.
        """
        if not options.force or options.resume or len(self._behaviors()) < 2:
            return
        run_path, other = self.path.resolve(), options.initialize_from
        sources = [Path(path) for path in starts if path] + ([self.results_dir / other] if other else [])
        if any(run_path in (path.resolve(), *path.resolve().parents) for path in sources):
            raise RunFolderError(
                f"{self.path}: --force deletes this run when its first behavior appears, and the others could not "
                "start from it any more (initialize_from, init_path). Choose another --run-id."
            )

    def prepare(self) -> None:
        """Create the run's folder and run_logs, which the environments need at start-up. Keeps everything in it."""
        with files.reported(self.logs):
            self.logs.mkdir(parents=True, exist_ok=True)

    def begin(self, resume: bool) -> None:
        """Call once when the environments run and training begins.

        Not a resume: removes the results of the run that was here before, event files with one warning each. Always:
        removes what an interrupted save left.
        """
        for folder in self._behaviors():
            checkpoints.clean(folder)
        for folder in (self.path, self.logs):
            unfinished.remove(folder)
        if not resume:
            self._remove_old_run()

    def initial_checkpoint(
        self, behavior_id: str, initialize_from: str | None = None, init_path: str | None = None, *, quiet: bool = False
    ) -> Path | None:
        """Return the checkpoint folder to take weights from, None for new ones. Raises CheckpointError.

        `init_path` wins over `initialize_from`; a bare name in it is looked up in the behavior's folder of the run
        `initialize_from`. `quiet`: without warnings of what was passed over.
        """
        if init_path is None and initialize_from is None:
            return None
        if initialize_from is None:
            return checkpoints.resolve(Path(str(init_path)), quiet=quiet)
        folder = self.results_dir / initialize_from / behavior_name(behavior_id)
        if init_path is None:
            return checkpoints.resolve(folder, quiet=quiet)
        chosen = folder / init_path if Path(init_path).name == init_path else Path(init_path)
        return checkpoints.resolve(chosen, quiet=quiet)

    def _behaviors(self) -> list[Path]:
        """List the behaviors' folders: with events, a checkpoint pointer, or checkpoints (also unfinished ones)."""
        marks = (
            EVENTS,
            *(f"{seed}/{EVENTS}" for seed in SEEDS),
            checkpoints.POINTER,
            f"*/{checkpoints.METADATA}",
            f"*/{checkpoints.MANIFEST}",
            f"*{unfinished.PARTIAL}",
        )
        folders = {folder for mark in marks for folder in self.path.glob("*") if any(True for _ in folder.glob(mark))}
        return sorted(folders - {self.logs})

    def _check_folders(self, force: bool) -> None:
        """Raise RunFolderError for a file instead of a folder, or a link where old files are to be deleted."""
        between = [path for path in self.path.parents if self.results_dir in path.parents]
        for path in between:
            if (path / self.logs.name).is_dir():
                raise RunFolderError(f"{path} holds a run, and another cannot lie in it. Choose another --run-id.")
        for path, flag in (
            (self.results_dir, "--results-dir"),
            *((path, "--run-id") for path in (*between, self.path)),
        ):
            if path.is_symlink() and not path.exists():
                raise RunFolderError(
                    f"{path} is a symbolic link to {os.readlink(path)}, which is not there. {_MEND_LINK}"
                )
            if path.exists() and not path.is_dir():
                raise RunFolderError(f"{path} is a file, not a folder. Choose another {flag}.")
        if not force or not self.holds_results():
            return
        for path in (self.results_dir, *between, self.path, *filter(Path.is_dir, self._inside())):
            if path.is_symlink():
                raise RunFolderError(
                    f"{path} is a symbolic link to {os.readlink(path)}, and --force deletes nothing through a link. "
                    "Name the folder itself (--results-dir, --run-id), or delete the old run by hand."
                )

    def _inside(self) -> Iterator[Path]:
        """Yield files and folders in the run's folder, as deep as the run writes under names that are known before."""
        return (path for depth in ("*", "*/*", "*/*/*") for path in self.path.glob(depth))

    def _refuse_links_out(self) -> None:
        """Raise RunFolderError for a link out of the folder of a run that goes on, which may be somebody else's."""
        run_path = os.path.realpath(self.path)
        for path in filter(Path.is_symlink, self._inside()):
            if not Path(os.path.realpath(path)).is_relative_to(run_path):
                raise RunFolderError(
                    f"{path} is a symbolic link to {os.readlink(path)}, and --resume writes and deletes nothing "
                    "through a link out of the run's folder. Put what it leads to in its place."
                )

    def _check_resume(self) -> None:
        if not self.path.is_dir():
            raise RunFolderError(
                f"{self.path} does not exist, so --resume has nothing to continue. "
                "Check --run-id and --results-dir, or leave --resume (checkpoint_settings.resume) out to start a new "
                "run."
            )
        for folder in self._behaviors():
            checkpoints.recover(folder)
        chosen = [checkpoints.choose(folder).path for folder in self._behaviors()]  # of each, one at least is whole
        if any(chosen):
            return
        for folder in sorted(path.parent for path in self.path.glob("*/checkpoint.pt")):
            checkpoints.require_latest(folder)
        raise RunFolderError(
            f"{self.path} holds no complete checkpoint, so --resume has nothing to continue: the run ended before its "
            "first one. Start it again with --force, or choose another --run-id."
        )

    def _check_source(self, run_id: str) -> None:
        source = self.results_dir / run_id
        if not source.is_dir():
            raise RunFolderError(
                f"--initialize-from {run_id}: {source} does not exist. "
                f"Give the --run-id of a run under {source.parent}."
            )

    def _check_start(self, name: str, initialize_from: str | None, init_path: str | None) -> None:
        """Raise CheckpointError if `initial_checkpoint` will find nothing, without its warnings."""
        try:
            self.initial_checkpoint(name, initialize_from, init_path, quiet=True)
        except CheckpointError as error:
            if init_path is None:
                raise
            raise CheckpointError(f"behaviors.{name}.init_path: {error}") from None

    def _check_places(self, behaviors: Iterable[str]) -> None:
        """Raise RunFolderError if a file of the run's end is a folder now, or the other way round."""
        for path in (self.configuration, self.timers, *map(self.final_onnx, behaviors)):
            if path.is_dir():
                raise RunFolderError(f"{path} is a folder where the run writes a file. Move it away.")
        for path in (self.logs, *map(self.behavior, behaviors)):
            if os.path.lexists(path) and not path.is_dir():
                raise RunFolderError(f"{path} is no folder, but the run writes into one of that name. Move it away.")

    def _check_writable(self) -> None:
        """Write and remove a small file, because permission bits alone do not tell (networks, Windows)."""
        folder = files.nearest_existing(self.path)
        with files.reported(self.path), tempfile.NamedTemporaryFile(dir=folder, prefix=".jaxrl-probe-") as probe:
            probe.write(bytes(4096))
            probe.flush()
            os.fsync(probe.fileno())
        if files.free_bytes(folder) < MIN_FREE_BYTES:
            raise RunFolderError(
                f"{self.path}: the disk is almost full ({files.free_text(folder)}; at least {MIN_FREE_BYTES >> 20} MiB "
                "are needed). Free disk space or choose another --results-dir."
            )

    def _remove_old_run(self) -> None:
        for folder in self._behaviors():
            seeds = seed_folders(folder)
            for events in sorted(file for place in (folder, *seeds) for file in place.glob(EVENTS)):
                _log.warning("%s was left over from a previous run. Deleting.", events)
                _unlink(events)
            for table in [file for place in (folder, *seeds) for file in place.glob(METRICS_TABLE)]:
                _unlink(table)
            for seed in seeds:
                if not any(seed.iterdir()):
                    seed.rmdir()
            checkpoints.remove_all(folder)
            leftovers = [folder / checkpoints.POINTER, *folder.glob(f"{folder.name}-*.onnx")]
            for path in [*leftovers, *checkpoints.exported_files(self.final_onnx(folder.name))]:
                _unlink(path)
            if not any(folder.iterdir()):
                shutil.rmtree(folder)
        for path in (self.configuration, self.timers, self.status, self.status.with_name(self.status.name + DAMAGED)):
            _unlink(path)


def _unlink(path: Path) -> None:
    """Delete a file of the old run; one that resists (open elsewhere on Windows) is reported and left."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.error("%s was left over from a previous run and cannot be deleted: %s", path, error)
