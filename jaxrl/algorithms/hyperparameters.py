"""Hyperparameters of each algorithm, under ML-Agents' names; `jaxrl.algorithms` registers them. No JAX here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from jaxrl.settings import Hyperparameters, ScheduleType
from jaxrl.settings.behavior import CountedSteps
from jaxrl.settings.section import (
    VARIABLE,
    Boolean,
    Count,
    Fraction,
    Integer,
    Location,
    NonNegative,
    Positive,
    unwritten,
)

_SCHEDULES = ("linear", "constant")


class OnPolicyHyperparameters(Hyperparameters):
    """Hyperparameters that on-policy algorithms share.

    An omitted beta or epsilon schedule copies a written learning_rate_schedule. Below `default_settings` nothing is
    omitted: a behavior inherits the schedules of that section, as in ML-Agents.
    """

    beta: NonNegative = Field(
        default=5e-3, description="entropy coefficient at the first step", json_schema_extra=VARIABLE
    )
    epsilon: Positive = Field(
        default=0.2, description="clip range of the probability ratio at the first step", json_schema_extra=VARIABLE
    )
    lambd: Fraction = Field(default=0.95, description="lambda of the returns", json_schema_extra=VARIABLE)
    num_epoch: Count = Field(default=3, description="passes over the buffer per update")
    beta_schedule: ScheduleType = Field(default="linear", description="linear: falls to 1e-5 at max_steps")
    epsilon_schedule: ScheduleType = Field(default="linear", description="linear: goes to 0.1 at max_steps")

    @classmethod
    def amend(cls, written: dict[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
        """Copy a valid learning_rate_schedule to the schedules that were left out."""
        schedule = written.get("learning_rate_schedule")
        if schedule not in _SCHEDULES:
            return written
        return {"beta_schedule": schedule, "epsilon_schedule": schedule, **written}


class PPOHyperparameters(OnPolicyHyperparameters):
    """Hyperparameters of PPO."""

    shared_critic: Boolean = Field(default=False, description="actor and critic share the body of the network")


class TeamHyperparameters(OnPolicyHyperparameters):
    """Hyperparameters of algorithms whose critic looks at whole teams."""

    posthumous_credit: Literal["value", "return"] = unwritten(
        "return",
        "how a member that ended is credited with what its team goes on to earn; value: by V of the team's next state, "
        "as ML-Agents; return: by the λ-return of the members that live on",
    )
    share_policy: Boolean = unwritten(
        True, "false: each member of a team has a policy of its own, by its place among team_capacity"
    )


class POCAHyperparameters(TeamHyperparameters):
    """Hyperparameters of MA-POCA."""

    team_capacity: Count | None = unwritten(
        None, "largest number of members of a team, with share_policy: false; null: any, they share one policy"
    )

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield an error if `team_capacity` is missing without `share_policy`, or written with it."""
        if not self.share_policy and self.team_capacity is None:
            yield ("team_capacity",), "this key is required with share_policy: false: the members of a team"
        if self.share_policy and self.team_capacity is not None:
            text = f"got {self.team_capacity}, expected null: it counts the policies of a team with share_policy: false"
            yield ("team_capacity",), text


class JointCriticHyperparameters(TeamHyperparameters):
    """Hyperparameters of algorithms whose critic has a fixed number of places."""

    team_capacity: Count = Field(description="largest number of members of a team that the critic has room for")


class MAPPOHyperparameters(JointCriticHyperparameters):
    """Hyperparameters of MAPPO."""


class COMAHyperparameters(JointCriticHyperparameters):
    """Hyperparameters of COMA with absorbing states."""


class SACHyperparameters(Hyperparameters):
    """Hyperparameters of SAC."""

    batch_size: Count = Field(default=128, description="agent steps per minibatch")
    buffer_size: CountedSteps = Field(default=50000, description="agent steps that the replay buffer holds")
    learning_rate_schedule: ScheduleType = Field(default="constant", description="linear: falls to 1e-10 at max_steps")
    buffer_init_steps: Integer = Field(default=0, ge=0, description="agent steps before learning begins")
    tau: Fraction = Field(
        default=0.005, description="share of the new value in the target network per update", json_schema_extra=VARIABLE
    )
    steps_per_update: Positive = Field(
        default=1.0, description="agent steps per gradient step", json_schema_extra=VARIABLE
    )
    save_replay_buffer: Boolean = Field(default=False, description="keep the replay buffer with the checkpoint")
    init_entcoef: NonNegative = Field(default=1.0, description="entropy temperature at the first step")
    reward_signal_steps_per_update: Positive = Field(
        default_factory=lambda data: data["steps_per_update"],
        description="agent steps per gradient step of the reward signals; default: steps_per_update",
        json_schema_extra=VARIABLE,
    )
    burn_in: Integer = Field(
        default=0,
        ge=0,
        description="with memory, first states of a sequence that lead its memory on and count in no loss, as far as "
        "no episode has begun in it; below network_settings.memory.sequence_length",
    )
    original_losses: Boolean = Field(
        default=False,
        description="entropy of hybrid actions, target entropies under masks and masked rows in the losses as "
        "ML-Agents has them",
    )

    backup_entropy: Boolean | None = unwritten(
        None,
        "count the entropy of the policy in what a state is worth: false: rewards alone; null: false with hybrid "
        "actions, where temperatures can grow without end, but with original_losses; true otherwise, as in ML-Agents",
    )

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield an error if `batch_size` exceeds `buffer_size`."""
        if self.batch_size > self.buffer_size:
            text = f"got {self.batch_size}, expected at most hyperparameters.buffer_size, which is {self.buffer_size}"
            yield ("batch_size",), text
