"""Settings of one behavior. Hyperparameters live beside their algorithm; the parser is handed their classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from jaxrl.settings.connectors import Connectors
from jaxrl.settings.demonstrations import DemoActions
from jaxrl.settings.networks import NetworkSettings
from jaxrl.settings.records import ELO, EVALUATED, GROUP, EvaluationSettings, StopRules
from jaxrl.settings.rewards import ExtrinsicSettings, RewardSignals
from jaxrl.settings.section import (
    VARIABLE,
    Boolean,
    Count,
    Fraction,
    Integer,
    Location,
    NonNegative,
    Number,
    Section,
    Text,
    conflict,
    expected,
    unwritten,
)
from jaxrl.trust import UntrustedError
from jaxrl.types import JaxrlError

TYPES = "hyperparameter_types"
"""Key of the validation context: hyperparameter class by trainer type."""

LARGEST_STEP = 2**31 - 1
"""Trainer steps are counted on the device, in an int32. A counter that is full stays there."""

ScheduleType = Literal["linear", "constant"]


def _countable(value: int) -> int:
    if value > LARGEST_STEP:
        raise expected(f"at most {LARGEST_STEP}, agent steps are counted in 32 bits")
    return value


def _function(value: str) -> str:
    place, _, name = value.rpartition(":")
    if not (name.isidentifier() and (place.endswith(".py") or all(part.isidentifier() for part in place.split(".")))):
        raise expected("FILE.py:function or module:function")
    return value


CountedSteps = Annotated[Count, AfterValidator(_countable)]
"""Agent steps that the device counts up to. Intervals have no limit: one that is never reached means never."""


class Hyperparameters(Section):
    """Hyperparameters that every algorithm has. Sizes count agent steps."""

    hints: ClassVar[Mapping[str, str]] = {
        **{
            key: f"{key}, beside hyperparameters"
            for key in ("max_steps", "time_horizon", "summary_freq", "checkpoint_interval", "keep_checkpoints")
        },
        **{key: f"network_settings.{key}, beside hyperparameters" for key in NetworkSettings.model_fields},
        **{key: f"reward_signals.extrinsic.{key}, beside hyperparameters" for key in ("gamma", "strength")},
    }

    @classmethod
    def whose(cls, key: object, context: Mapping[str, Any]) -> str:
        """Return the trainer types that have this hyperparameter."""
        owners = [name for name, kind in context.get(TYPES, {}).items() if key in kind.model_fields]
        return f"trainer_type: {', '.join(owners)}" if owners else ""

    batch_size: Count = Field(default=1024, description="agent steps per minibatch")
    buffer_size: CountedSteps = Field(default=10240, description="agent steps collected per update")
    learning_rate: NonNegative = Field(
        default=3e-4, description="Adam step size at the first step", json_schema_extra=VARIABLE
    )
    learning_rate_schedule: ScheduleType = Field(default="linear", description="linear: falls to 1e-10 at max_steps")


class BehavioralCloningSettings(Section):
    """Imitation of demonstrations beside reinforcement learning."""

    demo_path: Text = Field(description="demonstration file or folder")
    demo_actions: DemoActions = Field(
        default="detect",
        description="where files have the action of an observation; detect: as who wrote them does; as_recorded: "
        "beside it, as ML-Agents reads all files; next_record: in the agent's next record",
    )
    steps: Integer = Field(default=0, ge=0, description="trainer steps over which cloning fades out; 0: never")
    strength: NonNegative = Field(default=1.0, description="factor on the policy's learning rate")
    samples_per_update: Integer = Field(default=0, ge=0, description="demonstration steps per update; 0: all")
    num_epoch: Count | None = Field(default=None, description="passes per update; null: 3")
    batch_size: Count | None = Field(default=None, description="steps per minibatch; null: the trainer's")


class LeagueSettings(Section):
    """Exploiters beside a main agent, as seeds of one program or in workers. Its presence makes a league of them."""

    exploiters: Count = Field(
        default=1, description="of each main agent; a league takes 1 + exploiters seeds or workers"
    )
    win_share: Fraction = Field(
        default=0.7,
        description="share of its last games, about 50, that an exploiter has to score against the newest main agent "
        "to join its pool and begin anew",
    )
    renew_steps: Count = Field(default=100000, description="trainer steps after which it does so anyway")
    begin: Literal["fresh", "main"] = Field(
        default="fresh", description="how it begins anew: with new networks, or with a copy of the main agent's"
    )


class SelfPlaySettings(Section):
    """Self-play against earlier selves. Its presence turns self-play on."""

    save_steps: Count = Field(default=20000, description="trainer steps between snapshots")
    team_change: Count = Field(
        default_factory=lambda data: 5 * data["save_steps"],
        description="trainer steps between changes of the learning team; default 5 x save_steps",
    )
    swap_steps: Count = Field(default=2000, description="ghost steps between changes of the opponent")
    window: Count = Field(default=10, description="snapshots kept")
    play_against_latest_model_ratio: Fraction = Field(
        default=0.5, description="share of games against the latest policy"
    )
    initial_elo: Number = Field(default=1200.0, description="rating at the first step")
    result: Literal["final_reward", "return"] = unwritten(
        "final_reward", "whose sign is the result of a game: what its last step paid, or the return of the episode"
    )
    opponent_sampling: Literal["uniform", "pfsp"] = unwritten(
        "uniform", "which snapshot plays; pfsp (prioritised fictitious self-play): who wins more does so more often"
    )
    pfsp_power: NonNegative = unwritten(
        2.0, "p of pfsp: a snapshot that the learner beats with probability x has the weight (1 - x)^p"
    )
    league: LeagueSettings | None = unwritten(None, "main agents and exploiters")

    @property
    def league_size(self) -> int:
        """Seeds, or workers, of one league; 1 without."""
        return 1 if self.league is None else 1 + self.league.exploiters


class BehaviorSettings(Section):
    """Training of one behavior."""

    hints: ClassVar[Mapping[str, str]] = {
        "trainer": "trainer_type (`trainer` is the layout before ML-Agents release 0.18)",
        "use_recurrent": "network_settings.memory",
        "memory_size": "network_settings.memory.memory_size",
        "sequence_length": "network_settings.memory.sequence_length",
        **{key: f"network_settings.{key}" for key in NetworkSettings.model_fields},
        **{
            key: f"hyperparameters.{key}"
            for key in (*Hyperparameters.model_fields, "beta", "epsilon", "lambd", "num_epoch", "tau", "init_entcoef")
        },
        **{key: f"reward_signals.extrinsic.{key}" for key in ("gamma", "strength")},
    }

    trainer_type: Text = Field(default="ppo", description="name of the algorithm, or your own: my_file.py:make_x")
    # Any: each algorithm reads its own class, which lives beside it in a higher layer. Checked by `_typed`.
    hyperparameters: Any = Field(description="a Hyperparameters of the algorithm; default: its defaults")
    network_settings: NetworkSettings = Field(default=NetworkSettings(), description="policy and critic networks")
    reward_signals: RewardSignals = Field(
        default={"extrinsic": ExtrinsicSettings()},
        description="reward signals; giving the mapping replaces the default",
    )
    connectors: Connectors = unwritten(
        (), "what stands between environment and policy, in this order; a list replaces the default's"
    )
    init_path: Text | None = Field(default=None, description="checkpoint to start from")
    keep_checkpoints: Integer = Field(default=5, description="checkpoints kept; 0 or less: all")
    even_checkpoints: Boolean = Field(default=False, description="spread keep_checkpoints evenly over max_steps")
    max_steps: CountedSteps = Field(default=500000, description="trainer steps of the whole run")
    checkpoint_interval: Count = Field(
        default=500000, validate_default=True, description="trainer steps between checkpoints"
    )
    time_horizon: CountedSteps = Field(
        default=64, description="longest piece of a trajectory, in steps, before it is bootstrapped"
    )
    summary_freq: Count = Field(default=50000, description="trainer steps between summaries")
    episode_window: Count | None = Field(
        default=None,
        description="newest episodes whose returns and lengths are summed up (mean, least, largest); null: off",
    )
    threaded: Boolean = Field(default=False, description="collect while an update runs, at most one update behind")
    batch_mode: Literal["fragments", "complete_episodes"] = Field(
        default="fragments",
        description="fragments: an update takes episodes as they stand; complete_episodes: those that have ended",
    )
    count_by: Literal["agent_steps", "env_steps"] = Field(
        default="agent_steps",
        description="what buffer_size counts: decisions, or steps of areas; a message of a worker is one step of each "
        "of its num_areas (1 where copies stand in the Unity scene itself: the scene is one area then)",
    )
    max_episode_length: CountedSteps | None = Field(
        default=None,
        description="decisions after which an agent's episode is interrupted in the data, without the environment; "
        "null: never",
    )
    postprocess: Annotated[Text, AfterValidator(_function)] | None = Field(
        default=None, description="module:function, changes what was collected before returns are computed; null: none"
    )
    evaluation: EvaluationSettings | None = unwritten(None, "episodes of the deterministic policy; null: none")
    keep_best: Text | None = unwritten(
        None, "statistic by which the best checkpoint is kept beside the others, highest is best; null: none"
    )
    stop: StopRules = unwritten(
        {}, "values of statistics at which the training ends before max_steps, whichever is reached first"
    )
    team: Text | None = unwritten(
        None, "behaviors with the same name here learn as one team, with one critic; null: each for itself"
    )
    self_play: SelfPlaySettings | None = Field(default=None, description="self-play; null: off")
    behavioral_cloning: BehavioralCloningSettings | None = Field(default=None, description="imitation; null: off")

    @classmethod
    def amend(cls, written: dict[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
        """Fill in the trainer type's default hyperparameters where none are written."""
        return {"hyperparameters": {}, **written} if TYPES in context else written

    @classmethod
    def omissions(cls, written: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
        """Yield a problem for hyperparameters without a trainer type, which gives them their meaning."""
        if "hyperparameters" in written and "trainer_type" not in written:
            yield ("trainer_type",), "this key is required when hyperparameters are given"

    def conflicts(self) -> Iterator[tuple[Location, str]]:
        """Yield problems between keys, such as a minibatch that does not hold a whole sequence."""
        memory, batch_size = self.network_settings.memory, self.hyperparameters.batch_size
        if memory is not None and memory.sequence_length > batch_size:
            text = f"got {memory.sequence_length}, expected at most hyperparameters.batch_size, which is {batch_size}"
            yield ("network_settings", "memory", "sequence_length"), text
        begins = getattr(self.hyperparameters, "buffer_init_steps", 0)
        if begins >= self.max_steps:
            text = f"got {begins}, expected less than max_steps, which is {self.max_steps}: nothing would be learned"
            yield ("hyperparameters", "buffer_init_steps"), text
        pace, left = getattr(self.hyperparameters, "steps_per_update", 0.0), self.max_steps - begins
        if 0 < left < pace:
            text = f"got {pace:g}, expected at most max_steps less buffer_init_steps, {left}: nothing would be learned"
            yield ("hyperparameters", "steps_per_update"), text
        burn_in, length = getattr(self.hyperparameters, "burn_in", 0), 1 if memory is None else memory.sequence_length
        if burn_in >= length:
            bound = f"less than network_settings.memory.sequence_length, which is {length}: no state would count"
            bound = "0 without network_settings.memory" if memory is None else bound
            yield ("hyperparameters", "burn_in"), f"got {burn_in}, expected {bound}"
        for i, connector in enumerate(self.connectors if self.network_settings.normalize else ()):
            if connector.standardizes:
                text = "network_settings.normalize standardizes the same observations: keep one of the two"
                yield ("connectors", i, "type"), text
        yield from self._unshared()
        yield from self._unevaluated()
        if self.even_checkpoints and self.keep_checkpoints < 1:
            yield ("keep_checkpoints",), f"got {self.keep_checkpoints}, expected at least 1 with even_checkpoints"

    def _unshared(self) -> Iterator[tuple[Location, str]]:
        """Yield problems of keys that assume one policy for all members of a team."""
        why = {
            "self_play": "opponents of the past have one policy",
            "behavioral_cloning": "demonstrations do not say which member acts",
            "team": "members of several behaviors have policies of their own already",
        }
        for key, reason in why.items() if self.places is not None else ():
            if getattr(self, key) is not None:
                text = f"got false, expected true with {key}: {reason}: remove one of the two"
                yield ("hyperparameters", "share_policy"), text

    def _unevaluated(self) -> Iterator[tuple[Location, str]]:
        """Yield problems of `keep_best` and `stop` rules whose statistic is not written."""
        named = [(("keep_best",), self.keep_best or ""), *((("stop", tag), tag) for tag in self.stop)]
        for location, tag in named:
            if tag == ELO and self.self_play is None:
                yield location, f"got {tag!r}, which is written with `self_play` alone: add it"
            if tag.startswith(GROUP) and tag not in EVALUATED:
                yield location, f"got {tag!r}, expected one of {', '.join(EVALUATED)}"
            elif tag.startswith(GROUP) and self.evaluation is None:
                yield location, f"got {tag!r}, which is written with `evaluation: {{interval: STEPS}}` alone: add it"

    @property
    def places(self) -> int | None:
        """Number of members of a team whose members have a policy each (`share_policy: false`), else None."""
        return None if getattr(self.hyperparameters, "share_policy", True) else self.team_capacity

    @property
    def team_capacity(self) -> int | None:
        """Largest number of members of a team; None: any number."""
        return getattr(self.hyperparameters, "team_capacity", None)

    @property
    def segment_limit(self) -> int:
        """Decisions after which a return restarts from the value: time_horizon, or never where episodes stay whole."""
        return LARGEST_STEP if self.batch_mode == "complete_episodes" else self.time_horizon

    @property
    def last_step(self) -> int:
        """Trainer step above which training is over: max_steps, if the counter can rise above it."""
        return min(self.max_steps, LARGEST_STEP - 1)

    @property
    def passed_text(self) -> str:
        """Message for a run that is resumed beyond `last_step`."""
        full = self.max_steps == LARGEST_STEP
        advice = "no more can be counted, go on in a new run with --initialize-from" if full else "raise it to train on"
        return f"has passed max_steps ({self.max_steps}) already: {advice}."

    @field_validator("trainer_type")
    @classmethod
    def _known(cls, value: str, info: ValidationInfo) -> str:
        types = (info.context or {}).get(TYPES)
        try:
            if types is not None:
                types[value]  # imports a user's own trainer
        except KeyError:
            raise expected(f"one of {', '.join(sorted(types or ()))}, or your own as my_file.py:make_x") from None
        except UntrustedError:
            raise
        except JaxrlError as error:
            raise conflict(str(error).removeprefix("trainer_type: ")) from error
        return value

    @field_validator("hyperparameters", mode="before")
    @classmethod
    def _typed(cls, value: Any, info: ValidationInfo) -> Hyperparameters:
        types = (info.context or {}).get(TYPES)
        if isinstance(value, Hyperparameters):
            return value
        if types is None:
            raise expected("the hyperparameters object of the trainer type")
        if "trainer_type" not in info.data:
            return Hyperparameters()  # unknown trainer type, which is reported: nothing to check these against
        return types[info.data["trainer_type"]].model_validate(value, context=info.context)

    @field_validator("checkpoint_interval")
    @classmethod
    def _evenly(cls, value: int, info: ValidationInfo) -> int:
        data = info.data
        if not data.get("even_checkpoints") or data.get("keep_checkpoints", 0) < 1 or "max_steps" not in data:
            return value
        return max(1, int(data["max_steps"] / data["keep_checkpoints"]))
