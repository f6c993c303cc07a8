"""How a run pauses, or ends before its max_steps: what is said, and what becomes of its policies then."""

from __future__ import annotations

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.settings import CheckpointSettings, RunSettings
from jaxrl.training.interrupt import Interrupt


def interrupted(options: CheckpointSettings) -> str:
    """After Ctrl-C or another signal."""
    if options.inference:
        return "The run was interrupted. It only acted (--inference), so there is nothing to save."
    if options.exact:
        return (
            "Learning was interrupted. With --exact the checkpoints that are there stay the last ones: --resume goes "
            "on from the newest of them, and what came after it is not saved."
        )
    return "Learning was interrupted. Please wait while the policies are saved and exported."


def closed(why: Exception, options: CheckpointSettings) -> str:
    """An environment has ended in order."""
    if options.inference:
        return f"The run ends here: {why}. It only acted (--inference), so there is nothing to save."
    return f"Learning ends here: {why}. The policies are saved and exported."


def paused(why: Exception, settings: RunSettings) -> str:
    """Play mode was stopped in the Editor."""
    saved = "" if settings.checkpoint_settings.inference else "Everything is saved. "
    return (
        f"{why}. {saved}Press Play within {settings.env_settings.editor_wait:g} seconds (env_settings.editor_wait) to "
        "go on with new episodes; Ctrl-C ends the run."
    )


def failed_by_signal(error: Exception, interrupt: Interrupt) -> bool:
    """Whether an environment failed because the signal that ends the run has reached it too."""
    return isinstance(error, EnvironmentFailure) and interrupt.requested
