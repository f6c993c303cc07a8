"""Odd environments for Gymnasium, PettingZoo and RLlib, of which every return is known: one game, shown in four ways.

A case says what agents see and do, when each comes and goes, who acts, and what is wrong. Its game pays each action by
its distance from the best one, which is known: 1 for it. An action that is no element of the space, or is forbidden by
the mask, is an error of the game. `CASES` holds the cases by name, `check` what `jaxrl check-env` is to say of each.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from jaxrl.envs.foreign.behaviors import unnumbered
from jaxrl.envs.foreign.observations import leaves, part_at
from tests.envs.foreign.odd_masks import MASKS

MODULE = __name__
NOTES: list[tuple[int, Any, float]] = []
"""Number of the game, agent and return of each life that has ended and acted. Games are numbered as they are made."""
NUMBERS = itertools.count()
SEEN = spaces.Box(0, 1, (2,))
LEVER = spaces.Discrete(3)


class Span(NamedTuple):
    """One life of an agent: steps of the game between which it is there, and how it ends."""

    agent: Any
    born: int
    end: int
    how: str = "terminated"  # or "truncated", "both", "vanishes", "all": by the end of all


def together(*agents: Any, end: int = 4, how: str = "terminated") -> tuple[Span, ...]:
    return tuple(Span(agent, 0, end, how) for agent in agents)


class Case(NamedTuple):
    """One odd environment. Spaces are the same for all agents, or by agent."""

    kind: str  # gymnasium, parallel_env, env, rllib
    observation: Any = SEEN
    action: Any = LEVER
    spans: tuple[Span, ...] = together("agent")
    turns: str = ""  # who acts where not all do: "cycle", "random", "twice"
    order: str = ""  # of agents: "episode": shuffled by the seed, "worker": by nobody's seed
    mask: str = ""  # a name of MASKS
    silent: Mapping[int, Collection[Any]] = {}  # living agents that see nothing, by step
    pays: Mapping[int, Mapping[Any, float]] = {}  # beside what actions earn, by step
    odd: str = ""  # what else is odd: see `Game`
    check: str = ""  # words of the one remark or problem
    problem: bool = False  # else a remark
    arguments: tuple[str, ...] = ()
    behaviors: Mapping[Any, str] = {}  # of agents that are not called by their name
    trainer: str = "ppo"

    @property
    def agents(self) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(span.agent for span in self.spans))

    @property
    def shares(self) -> bool:
        """Whether rewards are those of a team."""
        return "team_reward=true" in self.arguments

    @property
    def length(self) -> int:
        return max(span.end for span in self.spans)

    def paid(self, agent: Any) -> float:
        """What an agent that lives once is paid while it is there, beside what its actions earn."""
        return sum(
            amounts.get(agent, 0.0)
            for step, amounts in self.pays.items()
            for span in self.spans
            if span.agent == agent and span.born < step <= span.end
        )

    @property
    def continuous(self) -> bool:
        """Whether some actions are numbers."""
        by_agent = self.action.values() if isinstance(self.action, dict) else [self.action]
        return any(isinstance(part, spaces.Box) for space in by_agent for _, part in leaves(space))

    def behavior(self, agent: Any) -> str:
        return "Odd-v0" if self.kind == "gymnasium" else self.behaviors.get(agent, unnumbered(agent))

    @property
    def address(self) -> str:
        maker = {"gymnasium": "Odd-v0", "parallel_env": "parallel_env", "env": "env", "rllib": "Shared"}[self.kind]
        return f"{'gymnasium' if self.kind == 'gymnasium' else self.interface}:{MODULE}:{maker}"

    @property
    def interface(self) -> str:
        return "rllib" if self.kind == "rllib" else "pettingzoo"


class Moment(NamedTuple):
    """What the game answers, by agent."""

    obs: dict[Any, Any]
    rewards: dict[Any, float]
    terminated: dict[Any, bool]
    truncated: dict[Any, bool]
    infos: dict[Any, dict[str, Any]]


class Game:
    """One copy of a case."""

    def __init__(self, case: str) -> None:
        self.case, self.number = CASES[case], next(NUMBERS)
        self.random, self.clock, self.episode = np.random.default_rng(), 0, -1
        self.living: list[Any] = []
        self.acting: list[Any] = []
        self.returns: dict[Any, float] = {}
        self.acted: set[Any] = set()
        self.masks: dict[Any, list[np.ndarray]] = {}
        self._spaces = {agent: self._own_spaces(agent) for agent in self.case.agents}

    def _own_spaces(self, agent: Any) -> tuple[spaces.Space, spaces.Space]:
        observation, action = (
            copy.deepcopy(of.get(agent) if isinstance(of, dict) else of)
            for of in (self.case.observation, self.case.action)
        )
        if self.case.mask:
            observation = MASKS[self.case.mask].space(observation)
        return observation, action

    def spaces(self, agent: Any) -> tuple[spaces.Space, spaces.Space]:
        observation, action = self._spaces[agent]
        if self.case.odd == "grows" and self.episode > 0:
            observation = spaces.Box(0, 1, (2 + self.episode,))
        return observation, action

    def reset(self, seed: int | None) -> Moment:
        if seed is not None and self.case.odd != "unseeded":
            self.random = np.random.default_rng(seed)
        self.clock, self.episode = 0, self.episode + 1
        self.living, self.returns, self.acted = [], {}, set()
        self._come()
        return self._moment({}, {}, {})

    def step(self, actions: Mapping[Any, Any]) -> Moment:
        """Pay, then end and begin lives. Raises AssertionError for an action that nobody may take."""
        assert list(actions) == self.acting or set(actions) == set(self.acting), (list(actions), self.acting)
        self.clock += 1
        self.acted |= set(actions)
        rewards = {agent: self._earned(agent, action) for agent, action in actions.items()}
        if self.case.odd == "zero sum":
            rewards = {agent: (-1.0) ** i for i, agent in enumerate(actions)}
        for agent, extra in self.case.pays.get(self.clock, {}).items():
            rewards[agent] = rewards.get(agent, 0.0) + extra
        for agent, reward in rewards.items():
            if agent in self.returns:
                self.returns[agent] += reward
        terminated, truncated = {}, {}
        for span in self.case.spans:
            if span.end == self.clock and span.agent in self.living and self.case.odd != "endless":
                terminated[span.agent] = span.how in ("terminated", "both")
                truncated[span.agent] = span.how in ("truncated", "both")
                self._go(span.agent)
        self._come()
        return self._moment(rewards, terminated, truncated)

    @property
    def over(self) -> bool:
        return self.clock == self.case.length and self.case.odd != "endless"

    def _earned(self, agent: Any, action: Any) -> float:
        space = self.spaces(agent)[1]
        assert self.case.arguments or space.contains(action), f"{action!r} is no element of {space}"
        for branch, (mask, choice) in enumerate(zip(self.masks.get(agent, ()), choices(space, action), strict=False)):
            assert mask[choice] or not mask.any(), f"branch {branch}: {choice} is forbidden by {mask}"
        return score(space, action)

    def _go(self, agent: Any) -> None:
        self.living.remove(agent)
        earned = self.returns.pop(agent)
        if agent in self.acted:
            NOTES.append((self.number, agent, earned))
            self.acted.remove(agent)

    def _come(self) -> None:
        new = [span.agent for span in self.case.spans if span.born == self.clock and not self.over]
        if self.case.order:
            random = self.random if self.case.order == "episode" else np.random.default_rng()
            new = [new[i] for i in random.permutation(len(new))]
        self.living += new
        self.returns |= dict.fromkeys(new, 0.0)

    def _moment(self, rewards: dict[Any, float], terminated: dict[Any, bool], truncated: dict[Any, bool]) -> Moment:
        silent = self.case.silent.get(self.clock, ())
        shown = [agent for agent in (*self.living, *terminated) if agent not in silent]
        self.acting = [agent for agent in self.living if agent not in silent]
        if self.case.turns and self.living:
            self.acting = [self._turn()]
        infos = {agent: {"clock": self.clock} for agent in shown}
        obs = {agent: self._seen(agent, infos[agent]) for agent in shown}
        return Moment(obs, rewards, terminated, truncated, infos)

    def _turn(self) -> Any:
        place = {"cycle": self.clock, "twice": self.clock // 2}.get(self.case.turns)
        return self.living[self.random.integers(len(self.living)) if place is None else place % len(self.living)]

    def _seen(self, agent: Any, infos: dict[str, Any]) -> Any:
        observation, action = self.spaces(agent)
        observation.seed(int(self.random.integers(2**31)))
        obs = SPOILED.get(self.case.odd if self.clock == 2 else "", lambda obs: obs)(observation.sample())
        if self.case.odd in ALTERED:
            obs = ALTERED[self.case.odd](obs)
        if self.case.mask:
            self.masks[agent] = self._drawn_masks(action)
            obs = MASKS[self.case.mask].show(obs, infos, self.masks[agent])
        return obs

    def _drawn_masks(self, action: spaces.Space) -> list[np.ndarray]:
        """Per branch what is allowed: the best, which is the last choice, and others by chance."""
        if self.case.odd == "closed" and self.clock == 2:
            return [np.zeros(size, np.int8) for size in branches(action)]
        masks = [self.random.integers(0, 2, size).astype(np.int8) for size in branches(action)]
        for mask in masks:
            mask[-1] = 1
        return masks


def nothing(_: Any) -> Any:
    return None


SPOILED: dict[str, Callable[[Any], Any]] = {
    "nan": lambda obs: obs * np.float32(np.nan),
    "infinite": lambda obs: obs + np.float32(np.inf),
    "outside": lambda obs: obs + np.float32(5),
    "shape": lambda obs: np.concatenate([obs, obs]),
    "above": lambda obs: obs + 99,
    "none": nothing,
    "missing": lambda obs: dict(list(obs.items())[1:]),
}
"""What is wrong with the observations after the second step."""
ALTERED: dict[str, Callable[[Any], Any]] = {
    "lists": lambda obs: obs.tolist(),
    "array": lambda obs: np.array([obs]),
    "python": int,
    "double": lambda obs: obs.astype(np.float64),
}
"""How observations are given otherwise, though right."""


def branches(space: spaces.Space) -> list[int]:
    """Sizes of the discrete branches of an action space, in its order."""
    sizes: list[int] = []
    for _, part in leaves(space):
        if isinstance(part, spaces.Discrete):
            sizes.append(int(part.n))
        elif isinstance(part, spaces.MultiDiscrete):
            sizes += part.nvec.ravel().tolist()
        elif isinstance(part, spaces.MultiBinary):
            sizes += [2] * int(np.prod(part.shape))
    return sizes


def choices(space: spaces.Space, action: Any) -> list[int]:
    """Choice of each branch, from 0 on."""
    chosen: list[int] = []
    for path, part in leaves(space):
        if not isinstance(part, spaces.Box):
            start = np.asarray(getattr(part, "start", 0))
            chosen += np.ravel(np.asarray(part_at(action, path)).astype(np.int64) - start).tolist()
    return chosen


def score(space: spaces.Space, action: Any) -> float:
    """Mean over the numbers of an action of 1 for the best one: the last choice, the upper bound."""
    sizes = branches(space)
    scores = [float(choice == size - 1) for choice, size in zip(choices(space, action), sizes, strict=True)]
    for path, part in leaves(space):
        if isinstance(part, spaces.Box):
            low, high = (np.where(np.isfinite(x), x, y).astype(float) for x, y in ((part.low, -3.0), (part.high, 3.0)))
            width = np.where(high > low, high - low, 1.0)
            scores += np.ravel(1 - (high - np.asarray(part_at(action, path), float)) / width).tolist()
    return float(np.mean(scores))


class Single(gymnasium.Env):
    """A case as Gymnasium has it."""

    def __init__(self, case: str) -> None:
        self.game = Game(case)
        self.observation_space, self.action_space = self.game.spaces("agent")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        moment = self.game.reset(seed)
        return moment.obs["agent"] if self.game.case.odd == "old" else (moment.obs["agent"], moment.infos["agent"])

    def step(self, action: Any) -> Any:
        odd = self.game.case.odd
        moment = self.game.step({"agent": action})
        flags = [moment.terminated.get("agent", False), moment.truncated.get("agent", False)]
        reward: Any = moment.rewards["agent"]
        if odd == "raises" and self.game.clock == 2:
            raise RuntimeError("out of fuel")
        reward = {"array reward": np.array([reward]), "bad reward": np.nan, "two": np.ones(2)}.get(odd, reward)
        flags = [np.bool_(flag) for flag in flags] if odd == "array reward" else flags
        answer = (moment.obs["agent"], reward, *flags, None if odd == "no info" else moment.infos["agent"])
        return (answer[0], answer[1], any(flags), answer[4]) if odd == "four" else answer


gymnasium.register("Odd-v0", Single)


class parallel_env(ParallelEnv):  # noqa: N801, PettingZoo's name
    """A case as PettingZoo's parallel environments have it."""

    metadata: Any = {"name": "odd", "render_modes": []}  # noqa: RUF012

    def __init__(self, case: str) -> None:
        self.game = Game(case)
        if self.game.case.odd not in ("unannounced", "uninvited"):
            self.possible_agents = list(self.game.case.agents)
        if self.game.case.odd == "uninvited":
            self.possible_agents = list(self.game.case.agents[:1])

    def observation_space(self, agent: Any) -> spaces.Space:
        return self.game.spaces(agent)[0]

    def action_space(self, agent: Any) -> spaces.Space:
        return self.game.spaces(agent)[1]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        moment = self.game.reset(seed)
        self.agents = list(self.game.living)
        return moment.obs, moment.infos

    def step(self, actions: dict[Any, Any]) -> Any:
        obs, rewards, terminated, truncated, infos = self.game.step(actions)
        self.agents = list(self.game.living) if not self.game.over else []
        if self.game.case.odd == "lists the dead":
            self.agents = [*self.agents, *terminated]
        gone = {span.agent for span in self.game.case.spans if span.how == "vanishes"}
        flags = [{a: flag for a, flag in of.items() if a not in gone} for of in (terminated, truncated)]
        if self.game.case.odd == "all flags":
            flags = [dict.fromkeys(self.agents, False) | of for of in flags]
        return obs, rewards, *flags, infos


class env(AECEnv):  # noqa: N801, PettingZoo's name
    """A case as PettingZoo's environments with turns have it."""

    def __init__(self, case: str) -> None:
        self.game = Game(case)
        self.metadata = {"name": "odd", "render_modes": [], "is_parallelizable": not self.game.case.turns}
        self.possible_agents, self.render_mode = list(self.game.case.agents), None

    def observation_space(self, agent: Any) -> spaces.Space:
        return self.game.spaces(agent)[0]

    def action_space(self, agent: Any) -> spaces.Space:
        return self.game.spaces(agent)[1]

    def observe(self, agent: Any) -> Any:
        return self.seen[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        moment = self.game.reset(seed)
        self.agents, self.seen, self.infos = list(self.game.living), moment.obs, moment.infos
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.sent: dict[Any, Any] = {}
        self.agent_selection = self.game.acting[0]

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.sent[agent] = action
        waiting = [other for other in self.game.acting if other not in self.sent]
        if waiting:
            self.agent_selection = waiting[0]
            return
        sent, self.sent = self.sent, {}
        moment = self.game.step(sent)
        self.seen |= moment.obs
        self.infos |= moment.infos
        self.rewards |= {a: r for a, r in moment.rewards.items() if a in self.agents}
        self.terminations |= moment.terminated
        self.truncations |= moment.truncated
        self._accumulate_rewards()
        if self.game.acting:
            self.agent_selection = self.game.acting[0]
        self._deads_step_first()


class Spaceless:
    """A case as RLlib's environments have it, derived from nothing; tells no space."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.game = Game(config["case"])
        self.worker = getattr(config, "worker_index", 1)
        self.shard = range(getattr(config, "num_workers", 1))[self.worker - 1]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        moment = self.game.reset(seed)
        return self._asked(moment.obs), moment.infos

    def _asked(self, obs: dict[Any, Any], *ended: Any) -> dict[Any, Any]:
        return {agent: obs[agent] for agent in (*self.game.acting, *ended) if agent in obs}

    def step(self, actions: dict[Any, Any]) -> Any:
        moment, case, over = self.game.step(actions), self.game.case, self.game.over
        if case.odd == "second worker" and self.worker == 2:
            raise RuntimeError("no fuel for worker 2")
        by_all = {span.agent for span in case.spans if span.how == "all"}
        flags = [{a: f for a, f in of.items() if f and a not in by_all} for of in (moment.terminated, moment.truncated)]
        cut = over and case.odd == "cut"
        flags[0]["__all__"], flags[1]["__all__"] = over and not cut, cut
        if case.odd == "no all":
            del flags[0]["__all__"]
        if case.odd == "only terminated":
            del flags[1]["__all__"]
        ended = [] if case.odd == "dead unseen" else list(moment.terminated)
        return self._asked(moment.obs, *ended), moment.rewards, *flags, moment.infos


class Shared(Spaceless):
    """Tells its spaces as most do: by agent."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        agents, told = self.game.case.agents, self.game.case.odd
        of = [{agent: self.game.spaces(agent)[i] for agent in agents} for i in (0, 1)]
        if told == "spaces in a Dict":
            self.observation_space, self.action_space = (spaces.Dict(one) for one in of)
        elif told == "one space":
            self.observation_space, self.action_space = self.game.spaces(agents[0])
            self.possible_agents = list(agents)
        elif told == "asked for spaces":
            self.get_agent_ids = lambda: set(agents)
            self.get_observation_space, self.get_action_space = of[0].__getitem__, of[1].__getitem__
        elif told != "no spaces":
            self.observation_spaces, self.action_spaces = of


def box(low: Any, high: Any, shape: Any = None, dtype: Any = np.float32) -> spaces.Box:
    if shape is None:
        low, high = np.array(low, dtype), np.array(high, dtype)
    return spaces.Box(low, high, shape, dtype)


TWO, THREE = ("walker_0", "walker_1"), ("walker_0", "walker_1", "walker_2")
ONE_BY_ONE = (Span("walker_0", 0, 2), Span("walker_1", 0, 3, "truncated"), Span("walker_2", 0, 5))
LATE = (Span("walker_0", 0, 5), Span("walker_1", 2, 5, "truncated"), Span("walker_0", 6, 8))
HAND = spaces.Dict({"lever": LEVER, "bell": spaces.Discrete(2, start=5)})
BOUNDS = {"walker_0": box(0, 4, (1,)), "walker_1": box(5, 9, (1,))}
OTHERS = {"behaviors": {"walker_1": "walker-2"}}
PICTURE = (20, 24, 3)
CASES: dict[str, Case] = {
    # Gymnasium: what is seen
    "box of odd bounds": Case("gymnasium", box([-3, 5, -1e4], [-1, 500, -9e3], dtype=np.float64)),
    "box of small integers": Case("gymnasium", box(-7, 12, (2, 3), np.int16), box(-2, 9, (2,), np.int32)),
    "box of bytes": Case("gymnasium", box(0, 255, (4,), np.uint8), box(0, 255, (1, 2), np.uint8)),
    "box without axes": Case("gymnasium", box(-1, 1, ()), box(2, 3, ())),
    "box without bounds": Case("gymnasium", box(-np.inf, np.inf, (3,)), box([5, -9], [9, -2], dtype=np.float64)),
    "box of one value": Case("gymnasium", box([0, 2], [1, 2]), box([0, 7], [1, 7])),
    "discrete from -2": Case("gymnasium", spaces.Discrete(5, start=-2), spaces.Discrete(3, start=-1)),
    "discrete as an array": Case("gymnasium", spaces.Discrete(4, start=3), odd="array"),
    "discrete as a number of Python": Case("gymnasium", spaces.Discrete(1000), odd="python"),
    "discrete outside": Case(
        "gymnasium", spaces.Discrete(4), odd="above", check="expected from [0] to [3]", problem=True
    ),
    "multidiscrete of two axes": Case(
        "gymnasium",
        spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[1, -1], [0, 5]])),
        spaces.MultiDiscrete(np.array([[2, 3], [2, 2]]), start=np.array([[1, -1], [0, 5]])),
    ),
    "multibinary of two axes": Case("gymnasium", spaces.MultiBinary((2, 2)), spaces.MultiBinary((2, 2))),
    "dict": Case(
        "gymnasium",
        spaces.Dict({"b": spaces.Tuple([spaces.Discrete(2), box(-1, 8, (2,))]), "a": spaces.Dict({"c": SEEN})}),
        spaces.Dict({"wheel": box(5, 9, (2,)), "hand": HAND}),
    ),
    "tuple": Case(
        "gymnasium",
        spaces.Tuple([spaces.MultiBinary(2), spaces.Dict({"z": SEEN, "y": spaces.MultiDiscrete([2, 3])})]),
        spaces.Tuple([LEVER, spaces.Tuple([box(-4, -2, (1,)), spaces.MultiBinary(2)])]),
    ),
    "image, channels last": Case("gymnasium", box(0, 255, PICTURE, np.uint8)),
    "image, channels first": Case("gymnasium", box(0, 255, (3, 20, 24), np.uint8)),
    "image without channels": Case("gymnasium", box(0, 255, (24, 20), np.uint8), box(-2, 5, (1,))),
    "image beside numbers": Case(
        "gymnasium", spaces.Dict({"eye": box(0, 255, (24, 20, 6), np.uint8), "legs": box(-1, 1, (2,))})
    ),
    "image of floats": Case("gymnasium", box(0, 1, (6, 6, 1))),
    "lists for arrays": Case("gymnasium", odd="lists"),
    "doubles for floats": Case("gymnasium", odd="double"),
    "text": Case("gymnasium", spaces.Dict({"seen": SEEN, "say": spaces.Text(5)}), check="'say': Text(", problem=True),
    "text to say": Case("gymnasium", action=spaces.Text(5), check="action space: Text(", problem=True),
    "sequence": Case("gymnasium", spaces.Sequence(SEEN), check="'observation': Sequence(", problem=True),
    "nothing to see": Case("gymnasium", box(0, 1, (0,)), check="has no numbers in it", problem=True),
    "not a number": Case("gymnasium", odd="nan", check="nan is not a finite number", problem=True),
    "infinite": Case("gymnasium", odd="infinite", check="inf is not a finite number", problem=True),
    "outside": Case("gymnasium", odd="outside", check="is above the bounds of Box(0.0, 1.0, (2,)"),
    "other shape": Case("gymnasium", odd="shape", check="got shape (4,), expected (2,)", problem=True),
    "no observation": Case("gymnasium", odd="none", check="sensor 'observation': ", problem=True),
    "a part is missing": Case(
        "gymnasium",
        spaces.Dict({"a": SEEN, "b": SEEN}),
        odd="missing",
        check="sensor 'a': there is no part 'a'",
        problem=True,
    ),
    "image that is too small": Case(
        "gymnasium",
        box(0, 255, (7, 7, 3), np.uint8),
        odd="small",
        check="3x7x7, is too small for network_settings.vis_encode_type",
    ),
    "image of several pictures": Case("gymnasium", box(0, 255, (2, 20, 20, 1), np.uint8)),
    # Gymnasium: what is done, masks, endings
    "half a bound": Case("gymnasium", action=box(5, np.inf, (1,)), check="has no upper bound", problem=True),
    "no bound and a scale": Case("gymnasium", action=box(-np.inf, np.inf, (2,)), arguments=("action_scale=3",)),
    "mask in the infos": Case("gymnasium", action=spaces.Discrete(4, start=2), mask="infos, bool"),
    "mask as a list": Case("gymnasium", action=spaces.MultiDiscrete([2, 3]), mask="infos, a list of numbers"),
    "mask of a branch each": Case("gymnasium", action=spaces.MultiDiscrete([2, 3]), mask="infos, a branch each"),
    "mask beside": Case("gymnasium", spaces.Discrete(3), mask="beside, one array"),
    "mask of floats": Case("gymnasium", mask="beside, floats"),
    "mask in a tuple": Case("gymnasium", action=spaces.MultiDiscrete([2, 3]), mask="beside, a Tuple"),
    "mask deep in a dict": Case("gymnasium", action=HAND, mask="deep, a Dict"),
    "mask of rows": Case("gymnasium", action=spaces.MultiDiscrete([3, 3]), mask="deep, rows"),
    "mask that is joint": Case(
        "gymnasium", action=spaces.MultiDiscrete([3, 3]), mask="beside, joint", check="Combinations", problem=True
    ),
    "mask of logits": Case("gymnasium", mask="infos, logits", check="1 where allowed and 0 where f", problem=True),
    "mask that is too long": Case(
        "gymnasium", mask="beside, too long", check="got 4 entries, expected 3", problem=True
    ),
    "mask that is too short": Case(
        "gymnasium", mask="infos, too short", check="got 2 entries, expected 3", problem=True
    ),
    "mask that forbids all": Case(
        "gymnasium", mask="infos, one array", odd="closed", check="forbids every choice of branch 0", problem=True
    ),
    "terminated and truncated": Case("gymnasium", spans=together("agent", how="both"), odd="array reward"),
    "truncated": Case("gymnasium", spans=together("agent", how="truncated"), odd="no info"),
    "endless": Case("gymnasium", odd="endless", check="no episode has ended in"),
    "not seeded": Case("gymnasium", odd="unseeded", check="draw all that is random from the seed"),
    "reward that is no number": Case("gymnasium", odd="bad reward", check="reward: nan is not a finite", problem=True),
    "two rewards": Case("gymnasium", odd="two", check="reward: got array([1., 1.]), expected one num", problem=True),
    "four values": Case("gymnasium", odd="four", check="returned 4 values, expected (observation, rew", problem=True),
    "old reset": Case("gymnasium", odd="old", check="expected a pair (observation, info)", problem=True),
    "raises": Case("gymnasium", odd="raises", check="RuntimeError: out of fuel", problem=True),
    # PettingZoo, all at once
    "other bounds, shuffled by episode": Case(
        "parallel_env", action=BOUNDS, spans=together(*TWO), order="episode", **OTHERS
    ),
    "each alone": Case("parallel_env", spans=together(*TWO), arguments=("teams=false",)),
    "paid as a team": Case(
        "parallel_env", spans=together(*TWO), arguments=("team_reward=true",), trainer="poca", mask="beside, floats"
    ),
    "comes again": Case(
        "parallel_env", spans=(Span("walker_0", 0, 2), *LATE[1:2], Span("walker_0", 3, 5)), check="has come again in"
    ),
    "names that are numbers and texts": Case("parallel_env", spans=together(3, "a b", ("c", 1)), order="episode"),
    "shuffled by no seed": Case(
        "parallel_env", action=BOUNDS, spans=together(*TWO), order="worker", check="come in another order", **OTHERS
    ),
    "one by one": Case("parallel_env", spans=ONE_BY_ONE, trainer="poca"),
    "all lists and flags": Case("parallel_env", spans=ONE_BY_ONE, odd="lists the dead", trainer="poca"),
    "late": Case(
        "parallel_env", spans=(*LATE[:2], Span("walker_2", 3, 7)), pays={7: {"walker_2": 2.5}}, trainer="poca"
    ),
    "vanishes": Case(
        "parallel_env", spans=(*together(*TWO), Span("walker_2", 0, 2, "vanishes")), check="'walker_2' is gone without"
    ),
    "silent for a moment": Case("parallel_env", spans=together(*TWO), silent={2: ["walker_0"]}),
    "paid after death": Case(
        "parallel_env",
        spans=(Span("walker_0", 0, 2), Span("walker_1", 0, 4)),
        pays={2: {"walker_0": -3.0}, 3: {"walker_0": 7.0}},
        check="'walker_0' is rewarded, but was not there",
    ),
    "not announced": Case("parallel_env", action=BOUNDS, spans=together(*TWO), odd="unannounced", **OTHERS),
    "not invited": Case("parallel_env", spans=together(*TWO), odd="uninvited", check="possible_agents do not name it"),
    "grows": Case("parallel_env", spans=together("walker_0"), odd="grows", check="have changed from Box(0.0"),
    "two kinds and images": Case(
        "parallel_env",
        {"cat_0": box(0, 255, PICTURE, np.uint8), "dog": spaces.Discrete(3)},
        {"cat_0": box(-7, -5, (2,)), "dog": spaces.MultiBinary(2)},
        spans=(Span("cat_0", 0, 4), Span("dog", 0, 3, "truncated")),
        order="episode",
    ),
    "mask of two agents": Case("parallel_env", spans=together(*TWO), mask="beside, one array", trainer="poca"),
    "zero sum": Case(
        "parallel_env", spans=together(*TWO), odd="zero sum", check="have cancelled each other", trainer="poca"
    ),
    # PettingZoo, in turns
    "turns": Case("env", spans=together(*THREE, end=6), turns="cycle", mask="beside, one array"),
    "turns by chance": Case("env", action=BOUNDS, spans=together(*TWO, end=6), turns="random", **OTHERS),
    "two turns each": Case("env", spans=together(*TWO, end=8, how="truncated"), turns="twice"),
    "turns of which one dies": Case("env", spans=(Span("walker_0", 0, 3), *together(*THREE[1:], end=7)), turns="cycle"),
    "paid in another turn": Case(
        "env", spans=together(*TWO, end=4), turns="cycle", pays={3: {"walker_1": -2.0}, 4: {"walker_0": 5.0}}
    ),
    "turns at once": Case("env", spans=together(*THREE)),
    "turns at once, one by one": Case("env", spans=ONE_BY_ONE, order="episode", trainer="poca"),
    # RLlib
    "by all": Case("rllib", spans=together(0, 1, how="all")),
    "cut for all": Case("rllib", spans=together(0, 1, how="all"), odd="cut"),
    "by flags": Case("rllib", spans=ONE_BY_ONE, odd="only terminated"),
    "empty moments": Case(
        "rllib", spans=(Span("walker_0", 0, 2), Span("walker_1", 4, 6), Span("walker_2", 7, 9, "truncated"))
    ),
    "comes again to rllib": Case(
        "rllib", spans=(Span("walker_0", 0, 2), Span("walker_0", 4, 6)), check="'walker_0' has come again in"
    ),
    "a shard for each worker": Case("rllib", spans=together(*TWO, how="all"), odd="shards"),
    "fails in the second worker": Case("rllib", odd="second worker", check="no fuel for worker 2", problem=True),
    "nobody at the beginning": Case("rllib", spans=(Span("walker_0", 1, 3), Span("walker_1", 2, 4, "all"))),
    "dead and not shown": Case("rllib", spans=ONE_BY_ONE, pays={2: {"walker_0": 3.0}}, odd="dead unseen"),
    "turns of rllib": Case("rllib", spans=together(*THREE, end=7, how="all"), turns="random"),
    "spaces in a Dict": Case("rllib", action=BOUNDS, spans=together(*TWO), odd="spaces in a Dict", **OTHERS),
    "spaces on request": Case("rllib", action=BOUNDS, spans=together(*TWO), odd="asked for spaces", **OTHERS),
    "one space for all": Case("rllib", spaces.Discrete(2, start=7), spans=together(*TWO), odd="one space"),
    "no spaces": Case("rllib", spans=together(*TWO), odd="no spaces", check="tells no observation space", problem=True),
    "no word of all": Case("rllib", spans=together(*TWO), odd="no all", check="without '__all__'", problem=True),
    "mask of rllib": Case("rllib", action=HAND, spans=ONE_BY_ONE, mask="deep, a Dict", order="episode"),
    "other bounds by turns": Case("rllib", action=BOUNDS, spans=together(*TWO, end=6), turns="cycle", **OTHERS),
}
