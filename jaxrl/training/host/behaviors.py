"""Register the behaviors of a run as they appear, with all policies that agents may follow."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from jaxrl import mesh
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.connected import without_learning
from jaxrl.algorithms.interface import Algorithm
from jaxrl.artifacts.checkpoint.mismatch import spec_differences
from jaxrl.artifacts.checkpoint.spec import spec_to_json
from jaxrl.artifacts.names import behavior_name, exploiter_name
from jaxrl.connectors import make_chain
from jaxrl.envs.spec_limits import check_spec
from jaxrl.networks.observations import check_observations
from jaxrl.settings import BehaviorSettings, RunSettings, behavior_settings_for
from jaxrl.training.host.behavior import Behavior, Programs, make_behavior
from jaxrl.training.host.policies import Policies
from jaxrl.training.host.programs import compile_programs, key_of
from jaxrl.training.host.recorder import HostRecorder
from jaxrl.training.host.team import Gathering, Kind, make_team_of
from jaxrl.training.host.updates import Updates
from jaxrl.training.interrupt import Interrupt
from jaxrl.training.saver import tell_unexportable
from jaxrl.types import BehaviorSpec, EnvMessage, JaxrlError

log = logging.getLogger(__name__)

MANY = 8
"""Number of different behaviors up to which compiling is so short that it is not announced."""


class SpecChangedError(JaxrlError):
    """Agents of one behavior name have different observations or actions."""


class Behaviors(dict[str, Behavior]):
    """Behaviors of a run by name, and all `policies`, which contain them.

    Args:
      workers: number of environments.
    """

    def __init__(
        self,
        settings: RunSettings,
        recorder: HostRecorder,
        updates: Updates,
        workers: int,
        interrupt: Interrupt,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._interrupt = interrupt
        self._recorder = recorder
        self._updates = updates
        self._workers = workers
        self._told: set[str] = set()  # behavior ids
        self._programs: dict[tuple[BehaviorSpec, str], tuple[Algorithm, Programs]] = {}
        self._gathering = Gathering(settings)
        self._key_of = partial(key_of, settings.env_settings.seed)
        self.policies = Policies(settings, self._key_of, self, self.make, self.open)

    def meet(self, results: Sequence[EnvMessage]) -> bool:
        """Register behaviors that are seen for the first time; load all their weights before any file is opened.

        Returns whether there were any.

        Raises:
          SettingsError: a behavior is not configured.
          SpecChangedError: a behavior differs from the one seen before under its name.
          SpecError: a behavior announces impossible sizes.
          ConnectorError: a connector does not fit the observations or actions.
          UnsupportedObservationError: no encoder reads one of the sensors.
          CheckpointError: resume or initialize, and the checkpoint does not fit.
          KeyboardInterrupt: the user interrupted while behaviors were made, which can take minutes.
        """
        new: dict[str, tuple[BehaviorSpec, str]] = {}
        for result in results:
            for behavior_id, spec in result.new_specs.items():
                name = behavior_name(behavior_id)
                known = (
                    self[name].spec if name in self else new[name][0] if name in new else self._gathering.spec_of(name)
                )
                if known is None:
                    check_spec(behavior_id, spec)
                    new[name] = spec, behavior_id
                elif known != spec:
                    changes = spec_differences(spec_to_json(known), spec_to_json(spec), ("there", "here"))
                    raise SpecChangedError(
                        f"{behavior_id}: its observations or actions differ from those seen as {name} "
                        f"({'; '.join(changes)}): agents of one behavior have the same ones, in every team: make them "
                        "alike in the environment (in Unity: Behavior Parameters), or give them another behavior name"
                    )
        self._tell_of_many(new)
        tell_of_accelerator(spec for spec, _ in new.values())
        newcomers: dict[str, Behavior] = {}
        for name, (spec, behavior_id) in new.items():
            with self._interrupt.waiting():
                newcomers |= self._made(name, spec, behavior_id)
        self._tell_of(results)
        self._hold(new)
        self._gathering.miss(len(results))
        for behavior in newcomers.values():
            if behavior.main is None:
                self._recorder.load(behavior)
        for name, behavior in newcomers.items():
            self._begin(behavior)
            self[name] = behavior
        return bool(newcomers)

    def _tell_of_many(self, met: Mapping[str, tuple[BehaviorSpec, str]]) -> None:
        """Log before compiling if many behaviors are compiled one by one, which takes minutes."""
        alike = {
            (spec, behavior_settings_for(self._settings, name).model_dump_json()) for name, (spec, _) in met.items()
        }
        if len(alike) > MANY:
            log.info(
                "%d behaviors differ in observations, actions or settings: the programs of each are compiled for "
                "themselves, some seconds each with an empty cache, before its first decision and its first update. "
                "Behaviors without such a difference share theirs.",
                len(alike),
            )

    def _tell_of(self, results: Sequence[EnvMessage]) -> None:
        """Log each behavior id once, as mlagents-learn does, before anything else is logged about it."""
        for behavior_id in dict.fromkeys(name for result in results for name in result.new_specs):
            if behavior_id not in self._told:
                self._told.add(behavior_id)
                log.info("Connected new brain: %s", behavior_id)

    @property
    def saved(self) -> list[Behavior]:
        """Behaviors with checkpoints of their own: all but exploiters."""
        return [behavior for behavior in self.values() if behavior.main is None]

    def decided(self) -> int:
        """Return the number of decisions of all behaviors in the whole run."""
        return sum(behavior.step for behavior in self.values())

    def open(self, behavior: Behavior) -> None:
        """Load a behavior's weights and open its files. Raises CheckpointError."""
        self._recorder.load(behavior)
        self._begin(behavior)

    def _begin(self, behavior: Behavior) -> None:
        """Open a behavior's files and register it for updates."""
        self._recorder.open(behavior)
        self._updates.meet(behavior)

    def make(
        self, name: str, spec: BehaviorSpec, settings: BehaviorSettings | None = None, behavior_id: str | None = None
    ) -> Behavior:
        """Make a fresh learner and its actor, by `settings` or, if None, by those configured under its name.

        Raises SettingsError if the behavior is not configured, ConnectorError or UnsupportedObservationError.
        """
        kind = self._kind(name, spec, settings, behavior_id)
        environment = self._settings.env_settings
        return make_behavior(name, *kind, training=self._training, areas=self._areas, environment=environment)

    @property
    def _training(self) -> bool:
        return not self._settings.checkpoint_settings.inference

    @property
    def _areas(self) -> int:
        return self._workers * self._settings.env_settings.num_areas

    def _kind(
        self, name: str, spec: BehaviorSpec, settings: BehaviorSettings | None = None, behavior_id: str | None = None
    ) -> Kind:
        """Return the parts that a behavior is made from. Raises as `make`."""
        settings = settings or behavior_settings_for(self._settings, name)
        chain = make_chain(spec, settings.connectors, behavior_id or name)
        check_observations(spec if chain is None else chain.spec, settings.network_settings, behavior_id or name)
        algorithm, programs = self._alike(spec, settings)
        tell_unexportable(name, spec, settings, algorithm)
        return Kind(spec, settings, algorithm, programs, self._key_of(name))

    def _made(self, name: str, spec: BehaviorSpec, behavior_id: str) -> dict[str, Behavior]:
        """Make a newly registered behavior, by name, with its league's exploiters or its complete team.

        Returns nothing while other behaviors of its team are missing. With inference, behaviors of a team act
        independently. Raises as `make`.
        """
        settings = behavior_settings_for(self._settings, name)
        team, league = settings.team, None if settings.self_play is None else settings.self_play.league
        if team is None or not self._training:
            behavior = self.make(name, spec, behavior_id=behavior_id)
            numbers = range(1, 1 + league.exploiters) if league is not None and self._training else ()
            exploiters = [
                self.make(exploiter_name(name, number), spec, settings)._replace(main=name) for number in numbers
            ]
            return {member.name: member for member in (behavior._replace(exploiters=exploiters), *exploiters)}
        kinds = self._gathering.add(team, name, self._kind(name, spec, behavior_id=behavior_id))
        if kinds is None:
            return {}
        whole = make_team_of(team, kinds, areas=self._areas, environment=self._settings.env_settings)
        self.policies.gather(team, whole)
        return {behavior.name: behavior for behavior in whole.behaviors}

    def _hold(self, names: Iterable[str]) -> None:
        """Let behaviors whose team is not complete act with their initial policy. Raises CheckpointError."""
        for name in names:
            kind = self._gathering.waits(name)
            if kind is not None:
                fresh, _, _ = kind.programs.learner.start(kind.algorithm, self._key_of(name))
                self.policies.hold(name, kind, self._recorder.first_policy(name, fresh, kind.spec, kind.settings))

    def _alike(self, spec: BehaviorSpec, settings: BehaviorSettings) -> tuple[Algorithm, Programs]:
        """Return algorithm and programs, shared by behaviors of equal observations, actions and settings."""
        alike = spec, settings.model_dump_json()
        if alike not in self._programs:
            algorithm = ALGORITHMS[settings.trainer_type](spec, settings)
            algorithm = algorithm if self._training else without_learning(algorithm)
            self._programs[alike] = algorithm, compile_programs(algorithm, settings.segment_limit)
        return self._programs[alike]


def tell_of_accelerator(specs: Iterable[BehaviorSpec]) -> None:
    """Log that the CPU is faster if an accelerator is used and no behavior sees images."""
    seen = [len(sensor.shape) for spec in specs for sensor in spec.observations]
    if mesh.on_accelerator() and seen and 3 not in seen:
        log.info(
            "No camera or grid is seen: with few agents and small networks --device cpu is faster, as an accelerator "
            "takes about 1 ms for each message of an environment, a CPU 0.1 to 0.2 (docs/gpu.md)."
        )
