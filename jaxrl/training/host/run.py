"""Run the host loop, from checked settings to a results folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from rich.console import Console

from jaxrl.algorithms.postprocessing import resolve
from jaxrl.artifacts.metrics import timers as nodes
from jaxrl.artifacts.metrics.progress import ProgressBar
from jaxrl.artifacts.run_folder import RunFolder
from jaxrl.callbacks import Callbacks, PolicyMapping, load_callbacks
from jaxrl.compilation import require_float32
from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.settings import RunSettings, with_drawn_seed
from jaxrl.training.checks import check_run, refuse_undemonstrated, warn_of_cloning
from jaxrl.training.host.hooks import Hooks, MappedBy
from jaxrl.training.host.launch import launched
from jaxrl.training.host.loop import HostLoop, failed_by_signal
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.interrupt import Interrupt

log = logging.getLogger(__name__)


def train(
    settings: RunSettings,
    console: Console | None = None,
    started: tuple[Interrupt, EnvPool] | None = None,
    *,
    callbacks: Sequence[Callbacks] | None = None,
    policy_mapping: PolicyMapping | None = None,
) -> None:
    """Run a whole training, from checked settings to a results folder.

    Ends when every behavior has passed its max_steps, at Ctrl-C or when an environment is closed (saves, returns),
    or with an error (saves and raises it).

    Args:
      started: from `launched(settings)`, done before JAX was imported.
      callbacks: called in this order, instead of those that the settings name (`callbacks: [module:Class]`).
      policy_mapping: (agent, episode, worker) → the policy that the agent follows, as `Callbacks.policy_mapping`; asked
        before the mappings of the callbacks.

    Raises:
      JaxrlError: a fault that the user can mend; before anything is written if it can be known by then.
    """
    require_float32()
    try:
        with host_loop(settings, console, started, callbacks=callbacks, policy_mapping=policy_mapping) as loop:
            loop.run()
    except _NotStarted:
        log.info("Interrupted before the environments had started; nothing to save.")


@contextmanager
def host_loop(
    settings: RunSettings,
    console: Console | None = None,
    started: tuple[Interrupt, EnvPool] | None = None,
    *,
    callbacks: Sequence[Callbacks] | None = None,
    policy_mapping: PolicyMapping | None = None,
) -> Iterator[HostLoop]:
    """Start a run's environments and yield its loop: `with host_loop(settings) as loop: for turn in loop.iterate()`.

    It gives a caller access to each loop step, see `HostLoop.iterate`. Arguments and errors are those of `train`;
    KeyboardInterrupt for Ctrl-C before the environments have started.
    """
    if started is None:
        check_run(settings)
    else:  # environments that are already started may differ from those that the settings name
        refuse_undemonstrated(settings)
    warn_of_cloning(settings)
    settings = with_drawn_seed(settings)
    for _, behavior in settings.every_behavior():
        if behavior.postprocess is not None:
            resolve(behavior.postprocess)
    mapped = [] if policy_mapping is None else [MappedBy(policy_mapping)]
    hooks = Hooks([*mapped, *(load_callbacks(settings.callbacks or ()) if callbacks is None else callbacks)])
    options = settings.checkpoint_settings
    with ExitStack() as stack:
        interrupt, pool = started or stack.enter_context(launched(settings))
        progress = stack.enter_context(ProgressBar(console or Console()))
        folder = RunFolder(options.results_dir, options.run_id)
        saved = partial(hooks.call, "on_checkpoint_saved") if hooks.callbacks else None
        recorder = stack.enter_context(HostRecorder(settings, folder, progress, saved))
        try:
            with recorder.timers(nodes.SETUP), interrupt.waiting():
                pool.ready()
        except (KeyboardInterrupt, EnvironmentFailure) as error:
            if isinstance(error, EnvironmentFailure) and not failed_by_signal(error, interrupt):
                raise
            raise _NotStarted from error
        loop = HostLoop(settings, recorder, interrupt, pool, hooks)
        try:
            yield loop
        finally:
            for behavior in loop.behaviors.values():
                behavior.learner.give_up()


class _NotStarted(KeyboardInterrupt):
    """Ctrl-C came before the environments had started."""
