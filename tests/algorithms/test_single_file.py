"""examples/single_file: each file learns what the product learns, from equal parameters and the same rollout."""

from __future__ import annotations

import sys
from functools import partial
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from team_rollouts import fresh

import jaxrl
from jaxrl.algorithms.interface import store_rollout
from jaxrl.learning import minibatches, replay
from jaxrl.rollout.rollout import EverySecond, Rollout
from jaxrl.types import Action

FOLDER = Path(__file__).parents[2] / "examples" / "single_file"
STEPS, AREAS = 8, 6
NETWORKS = {"hidden_units": 8, "num_layers": 2}
COEFFICIENTS = {"gamma": 0.9, "lambd": 0.8, "epsilon": 0.01, "beta": 0.03, "learning_rate": 0.003}


def load(name: str) -> ModuleType:
    """Import one of the files."""
    spec = util.spec_from_file_location(f"single_file_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Episodes:
    """Random decisions of teams, numpy [T, E, A, ...]: members die, whole teams end or are cut off, others begin."""

    def __init__(self, env: jaxrl.JaxEnv, seed: int, *, everybody: bool) -> None:
        rng = np.random.default_rng(seed)
        members, size = env.members, env.spec.action.mask_size
        lead = (STEPS, AREAS, members)
        self.acted, self.terminated, self.truncated = (np.zeros(lead, bool) for _ in range(3))
        alive = self._team(rng, lead[1:], everybody)
        for t in range(STEPS):
            self.acted[t] = alive
            end = rng.choice(3, (AREAS, 1), p=[0.7, 0.15, 0.15])
            dies = alive & (rng.random(alive.shape) < 0.2) & (not everybody)
            self.truncated[t] = alive & (end == 2)
            self.terminated[t] = alive & (end != 2) & (dies | (end == 1))
            alive = alive & ~self.terminated[t] & ~self.truncated[t]
            alive = np.where(alive.any(-1, keepdims=True), alive, self._team(rng, lead[1:], everybody))
        self.ended = self.terminated | self.truncated
        self.stays = self.acted & ~self.ended
        self.over = ~self.stays.any(-1, keepdims=True)

        def numbers(*shape: int) -> np.ndarray:
            return rng.normal(size=(*lead, *shape)).astype(np.float32)

        width = sum(sensor.shape[0] for sensor in env.spec.observations)
        self.obs, self.next_obs = numbers(width), numbers(width)
        goes_on = ~self.over[:-1, ..., None]
        self.next_obs[:-1] = np.where(goes_on, self.obs[1:], self.next_obs[:-1])
        self.continuous = np.tanh(numbers(env.spec.action.continuous_size))
        self.discrete = rng.integers(0, max(size, 1), (*lead, min(size, 1))).astype(np.int32)
        self.mask = rng.random((*lead, size)) < 0.7
        np.put_along_axis(self.mask, self.discrete, True, axis=-1)
        self.log_prob = -np.abs(numbers()) - 0.5
        self.reward, self.group_reward = (numbers() * self.acted for _ in range(2))

    @staticmethod
    def _team(rng: np.random.Generator, shape: tuple[int, ...], everybody: bool) -> np.ndarray:
        """Members of new teams, bool [E, A], at least one in each."""
        return everybody | (rng.random(shape) < 0.7) | (np.arange(shape[1]) == rng.integers(shape[1]))

    def rollout(self, kind: Any) -> Any:
        """Return a file's form, its `Rollout`. PPO's reward is the agent's own and its group's."""
        arrays = {
            "obs": self.obs,
            "action_mask": self.mask,
            "action": self.discrete[..., 0],
            "log_prob": self.log_prob,
            "acted": self.acted,
            "reward": self.reward,
            "group_reward": self.group_reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "over": self.over,
            "next_obs": self.next_obs,
            "next_present": np.where(self.over, self.truncated, self.stays),
        }
        if "group_reward" not in kind._fields:
            arrays["reward"] = self.reward + self.group_reward
        return kind(**{name: x for name, x in arrays.items() if name in kind._fields})

    def product(self, team_rows: bool) -> Rollout:
        """Return the product's form: a row is a team or a single agent, with a last observation after each decision."""
        members = self.acted.shape[-1] if team_rows else 1

        def row(x: np.ndarray) -> np.ndarray:
            return x.reshape(STEPS, x.shape[1] * x.shape[2] // members, members, *x.shape[3:])

        acted, ended, truncated, stays = map(row, (self.acted, self.ended, self.truncated, self.stays))
        over = ended & ~stays.any(-1, keepdims=True)
        idle = np.broadcast_to(~acted.any(-1, keepdims=True), acted.shape)
        absent = np.broadcast_to(~truncated.any(-1, keepdims=True), acted.shape)

        def states(x: np.ndarray, between: Any = 0, last: Any = 0) -> np.ndarray:
            both = np.stack([x, np.broadcast_to(between, x.shape)], axis=1).reshape(2 * STEPS, *x.shape[1:])
            return np.concatenate([both, np.broadcast_to(last, x[:1].shape)]).astype(x.dtype)

        reward, seen_next = row(self.reward), row(self.next_obs)
        mates = reward.sum(-1, keepdims=True) - reward
        return Rollout(
            obs=(states(row(self.obs), seen_next, seen_next[-1:]),),
            carry=(),
            action_mask=states(row(self.mask)),
            action=Action(states(row(self.continuous)), states(row(self.discrete))),  # type: ignore[arg-type]
            extras={"log_prob": states(row(self.log_prob[..., None]))},  # type: ignore[dict-item]
            begin=states(acted & False),
            present=states(acted, truncated, stays[-1:]),
            acted=states(acted),
            waiting=states(idle, absent),
            reward=states(reward),
            mates_reward=states(np.where(acted, mates, 0)),
            group_reward=states(row(self.group_reward)),
            terminated=states(over & ~truncated),
            truncated=states(truncated),
            left=states(ended & ~over),
            cut=states(acted & False),
            between=EverySecond(),
        )


def product_of(trainer: str, env: jaxrl.JaxEnv, **hyper: Any) -> jaxrl.Algorithm:
    """The product at settings that the files have."""
    settings = jaxrl.make_settings(
        trainer,
        network_settings=NETWORKS,
        reward_signals={"extrinsic": {"gamma": COEFFICIENTS["gamma"], "strength": 0.5}},
        hyperparameters=hyper,
    )
    return jaxrl.make_algorithm(env.spec, settings)


def orders_of(key: jax.Array, rows: int) -> np.ndarray:
    """The orders in which the product's update takes the rows of T states, int32 [epochs, rows]; the last has none."""
    valid = np.arange(rows // STEPS * (STEPS + 1)) < rows
    keys = jax.random.split(jax.random.split(key)[0], 2)
    return np.stack([minibatches.shuffle(key, valid)[:rows] for key in keys])  # type: ignore[arg-type]


def largest(first: Any, second: Any) -> float:
    """The largest difference between two trees of the same names."""
    differences = jax.tree.map(lambda x, y: float(np.abs(np.asarray(x) - np.asarray(y)).max()), first, second)
    return max(jax.tree.leaves(differences))


def renamed(tree: Any, names: dict[str, str]) -> Any:
    """The parameters of a product's network, params/SCOPE/NAME/..., by the names of the file's modules."""
    flat = {"/".join(key.key for key in path): x for path, x in jax.tree_util.tree_flatten_with_path(tree)[0]}
    result: dict[str, Any] = {}
    for path, x in flat.items():
        for old, new in names.items():
            path = path.replace(old, new)
        *folders, last = path.split("/")
        place = result
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = x
    return result


NAMES = {"body/": "", "heads/logits": "head", "values": "head"}
"""Parts of the product's networks by their names in the files."""
TEAM_NAMES = {"attention/out_": "attention/out/", "values": "body/head"}
"""The same of MA-POCA's critic."""


def groups_of(actor: Any, critic: Any) -> dict[str, Any]:
    """Parameters, or their moments, as the files hold them."""
    names = TEAM_NAMES if "attention" in critic["params"] else NAMES
    return {"actor": renamed(actor, NAMES), "critic": renamed(critic, names)}


def without_key_bias(params: Any) -> Any:
    """Leave out the bias of the keys, which adds the same to all scores of a query: its gradient is rounding alone."""
    if "attention" not in params.get("critic", {"params": ()})["params"]:
        return params
    result = jax.tree.map(np.array, params)
    bias = result["critic"]["params"]["attention"]["qkv"]["bias"]
    bias[len(bias) // 3 : 2 * len(bias) // 3] = 0.0
    return result


def check(name: str, params: Any, expected: Any, moments: Any, gradients: Any) -> None:
    """Compare all parameters, and Adam's means of gradients, in which the scale of a loss shows."""
    of_params = largest(without_key_bias(params), without_key_bias(expected))
    of_gradients = largest(moments[0].mu, gradients) / max(float(np.abs(x).max()) for x in jax.tree.leaves(gradients))
    print(f"{name}: largest difference of parameters {of_params:.1e}, of gradients {of_gradients:.1e} of the largest")
    assert of_params < 1e-6
    assert of_gradients < 2e-6


def compare(name: str, environment: str, *, everybody: bool, **hyper: Any) -> None:
    """Three updates of two epochs, side by side; of four minibatches in the product's own order where all act."""
    module, env = load(name), jaxrl.make_environment(environment)
    count, team_rows = 4 if everybody else 1, name == "poca"
    decisions = STEPS * AREAS * env.members
    rows = STEPS * AREAS if team_rows else decisions
    numbers = {name: value for name, value in COEFFICIENTS.items() if name != "gamma"}
    schedules = {f"{name}_schedule": "constant" for name in ("learning_rate", "epsilon", "beta")}
    sizes = {"num_epoch": 2, "buffer_size": 4096, "batch_size": decisions // count}
    product = product_of(name, env, **sizes, **numbers, **schedules, **hyper)
    own = {"areas": AREAS, "steps": STEPS, "epochs": 2, "minibatches": count, "reward_scale": 0.5}
    learner = module.make_learner(env, module.Settings(**NETWORKS, **COEFFICIENTS, **own, **hyper))
    product_learn, learn = jax.jit(product.learn), jax.jit(partial(module.learn, learner))
    state = fresh(product)
    params = groups_of(state.policy.params, state.critic)
    moments = learner.optimizer.init(params)
    for seed in range(3):
        data = Episodes(env, seed, everybody=everybody)
        orders = orders_of(state.key, rows).reshape(-1, rows // count)
        params, moments = learn(params, moments, data.rollout(module.Rollout), orders)
        state, _ = product_learn(state, data.product(team_rows))
        expected = groups_of(state.policy.params, state.critic)
        gradients = groups_of(state.optimizer.mu["actor"], state.optimizer.mu["critic"])
        check(f"{name}, update {seed}", params, expected, moments, gradients)


@pytest.mark.parametrize("everybody", [False, True], ids=["members die, one minibatch", "all live, minibatches"])
def test_ppo_learns_what_the_product_learns(everybody: bool) -> None:
    """Of several minibatches in the product's own order where every agent acts."""
    compare("ppo", "jax:simple_spread", everybody=everybody)


@pytest.mark.parametrize(
    ("everybody", "credit"),
    [(False, "return"), (False, "value"), (True, "return")],
    ids=["members die, return", "members die, value", "all live, minibatches"],
)
def test_poca_learns_what_the_product_learns(everybody: bool, credit: str) -> None:
    """With both forms of posthumous credit where members die."""
    compare("poca", "jax:dungeon_escape", everybody=everybody, posthumous_credit=credit)


def test_sac_learns_what_the_product_learns() -> None:
    """Three steps from a replay and three more, with the product's own minibatches and noise; and what is held."""
    sac, env = load("sac"), jaxrl.make_environment("jax:ball3d")
    decisions, size = STEPS * AREAS, 32
    numbers = {"learning_rate": 0.003, "tau": 0.1}
    hyper = {"init_entcoef": 0.3, "steps_per_update": decisions / 3, "batch_size": size, "buffer_size": 4096}
    product = product_of("sac", env, **numbers, **hyper)
    own = {"batch_size": size, "replay_size": 3 * decisions, "initial_alpha": 0.3, "reward_scale": 0.5, "gamma": 0.9}
    learner = sac.make_learner(env, sac.Settings(**NETWORKS, **numbers, **own))
    put, learn_product, learn = map(
        jax.jit, (partial(store_rollout, product), product.learn, partial(sac.learn, learner))
    )
    train, store = fresh(product), product.storage.init()
    params = sac_groups(train.policy.params, train.critic, train.own["log_alpha"])
    target = params.pop("target")
    state = sac.State(params, target, learner.optimizer.init(params))
    for seed in range(2):
        train, store = put(
            train, store, Episodes(env, seed, everybody=False).product(team_rows=False)._replace(extras={})
        )
        key, _ = jax.random.split(train.key)
        for number in range(3):
            drawn, noise = jax.random.split(jax.random.fold_in(key, number))
            batch = product.storage.sample(store, drawn)
            normal = jax.random.normal(noise, (size, env.spec.action.continuous_size))
            state = learn(state, transition_of(sac, batch), normal)
        train, _ = learn_product(train, store)
        assert int(train.optimizer["policy"].count) == 3 * (seed + 1)
        expected = sac_groups(train.policy.params, train.critic, train.own["log_alpha"])
        assert largest(state.target, expected.pop("target")) < 1e-6
        critic = {"target": train.critic["target"], **train.optimizer["critic"].mu}
        gradients = sac_groups(train.optimizer["policy"].mu, critic, train.optimizer["entropy"].mu)
        gradients.pop("target")
        check(f"sac, update {seed}", state.params, expected, state.moments, gradients)


def transition_of(sac: ModuleType, batch: Any) -> Any:
    """The product's transitions as the file has them."""
    return sac.Transition(batch.obs[0], batch.action.continuous, batch.reward, batch.discount == 0.0, batch.next_obs[0])


def sac_groups(policy: Any, critic: Any, log_alpha: Any) -> dict[str, Any]:
    """Parameters, or their moments, as the file holds them; the two heads of the policy are one."""
    heads = policy["params"]["heads"]
    both = {
        name: np.concatenate([heads["mean"][name], heads["log_sigma"][name]], axis=-1) for name in ("kernel", "bias")
    }
    actor = {"params": {**policy["params"]["body"], "head": both}}
    critics = {name: renamed(critic[name], NAMES) for name in ("value", "target", "q1", "q2")}
    return {"actor": actor, "log_alpha": log_alpha["continuous"][0], **critics}


def test_sac_holds_what_the_product_holds() -> None:
    """Transitions of two rollouts in the order of time, where the newest take the place of the oldest."""
    sac, env = load("sac"), jaxrl.make_environment("jax:ball3d")
    data = Episodes(env, 0, everybody=False)
    reward = data.reward + data.group_reward
    new = sac.Transition(data.obs, data.continuous, reward, data.terminated, data.next_obs)
    new = jax.tree.map(lambda x: x.reshape(STEPS * AREAS, *x.shape[3:]), new)
    product = product_of("sac", env, batch_size=8, buffer_size=4096)
    store = product.storage.add(product.storage.init(), data.product(team_rows=False)._replace(extras={}))
    held = transition_of(sac, replay.at(store, np.arange(STEPS * AREAS), np.ones(STEPS * AREAS, bool)))
    seen = ~held.terminated[:, None]
    assert held.terminated.any() and data.truncated.any()
    np.testing.assert_array_equal(np.where(seen, held.next_obs, 0), np.where(seen, new.next_obs, 0))
    for name in ("obs", "action", "reward", "terminated"):
        np.testing.assert_array_equal(getattr(held, name), getattr(new, name))
    room = STEPS * AREAS + 5  # the second rollout wraps round
    empty = sac.Replay(jax.tree.map(lambda x: np.zeros((room, *x.shape[1:]), x.dtype), new), np.int32(0))
    ring = sac.add(sac.add(jax.tree.map(jax.numpy.asarray, empty), new), jax.tree.map(lambda x: x[::-1], new))
    places = np.arange(2 * STEPS * AREAS)[-room:] % room
    expected = np.concatenate([new.obs, new.obs[::-1]])[-room:]
    np.testing.assert_array_equal(np.asarray(ring.kept.obs)[places], expected)
