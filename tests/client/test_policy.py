"""`jaxrl.load`: what a policy does is what its algorithm does, with memory and connectors, and mistakes are named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms.interface import TrainState
from jaxrl.artifacts.checkpoint import manifest
from jaxrl.artifacts.checkpoint import store as checkpoint
from jaxrl.artifacts.checkpoint.document import METADATA
from jaxrl.artifacts.checkpoint.folder import CheckpointError
from jaxrl.artifacts.checkpoint.spec import spec_from_json, spec_to_json
from jaxrl.artifacts.run_folder import RunFolderError
from jaxrl.demonstrations import Pair, write
from jaxrl.settings import SettingsError
from jaxrl.training.host.saver import Saved
from jaxrl.training.trained_policy import Trained
from jaxrl.types import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from tests.helpers import make_spec, ppo_settings
from tests.jax_envs.toy_jax_env import quick_compilation


@pytest.fixture(scope="module", autouse=True)
def compiled_in_a_hurry() -> Iterator[None]:
    """Programs run once."""
    with quick_compilation():
        yield


RIGHT = 2
BASIC = jaxrl.make_environment("jax:basic")
SMALL: dict[str, Any] = {"network_settings__hidden_units": 4, "network_settings__num_layers": 1}


def learner(spec: BehaviorSpec, settings: Any, seed: int = 0) -> TrainState:
    return jax.jit(jaxrl.make_ppo(spec, settings).init)(jax.random.key(seed))


def save(run: Path, name: str, spec: BehaviorSpec, settings: Any, train: Any, step: int = 700, **more: Any) -> Path:
    """A run with one checkpoint, as the host loop leaves it."""
    saved = Saved(train=train, step=np.int64(step), decisions=np.int64(9))
    checkpoint.save(run / name, step, saved, spec=spec, settings=settings.model_dump(mode="json") | more)
    return run


def towards(state: TrainState, action: int, by: float = 50.0) -> TrainState:
    """A learner whose policy prefers one action wherever it is."""
    params = jax.tree.map(jnp.zeros_like, state.policy.params)
    logits = params["params"]["heads"]["logits"]
    logits["bias"] = logits["bias"].at[action].set(by)
    return state.replace(policy=state.policy.replace(params=params))


@pytest.fixture(scope="module")
def basic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose policy goes to the right."""
    settings = ppo_settings(**SMALL)
    run = tmp_path_factory.mktemp("basic") / "run"
    return save(run, "Basic", BASIC.spec, settings, towards(learner(BASIC.spec, settings), RIGHT))


@pytest.fixture(scope="module")
def goes_right(basic: Path) -> jaxrl.Policy:
    return jaxrl.load(basic)


def test_what_it_is(goes_right: jaxrl.Policy) -> None:
    assert (goes_right.behavior, goes_right.step, goes_right.spec.action) == ("Basic", 700, BASIC.spec.action)
    assert goes_right.settings.network_settings.hidden_units == 4
    assert "Basic-700" in repr(goes_right)


@pytest.mark.parametrize("lead", [(), (3,), (2, 2)])
def test_it_acts_for_any_leading_axes(goes_right: jaxrl.Policy, lead: tuple[int, ...]) -> None:
    action = goes_right.act(np.zeros((*lead, 20)), key=1)
    np.testing.assert_array_equal(action.discrete, np.full((*lead, 1), RIGHT))
    assert action.continuous.shape == (*lead, 0)


def test_a_mask_forbids(goes_right: jaxrl.Policy) -> None:
    mask = np.array([[True, True, True], [True, False, False]])
    named = {"VectorSensor_size20": np.zeros((2, 20))}
    np.testing.assert_array_equal(goes_right.act(named, mask, jax.random.PRNGKey(0)).discrete, [[RIGHT], [0]])


def test_whole_episodes_have_known_returns(goes_right: jaxrl.Policy) -> None:
    played = goes_right.rollout(BASIC, 5, areas=2)
    np.testing.assert_allclose(played.returns, np.full((5, 1), 0.93), rtol=1e-5)  # seven steps to the right
    assert played.lengths.tolist() == [7] * 5 and played.finished.all() and not played.group_returns.any()
    cut = goes_right.rollout(BASIC, 2, steps=3)
    np.testing.assert_allclose(cut.returns, np.full((2, 1), -0.03), rtol=1e-5)
    assert cut.lengths.tolist() == [3, 3] and not cut.finished.any()


def test_a_seed_is_one_result_and_another_one_another(tmp_path: Path) -> None:
    settings = ppo_settings(**SMALL)
    indifferent = towards(learner(BASIC.spec, settings), RIGHT, by=0.1)
    policy = jaxrl.load(save(tmp_path / "run", "Basic", BASIC.spec, settings, indifferent))
    first, again, other = (policy.rollout(BASIC, 4, seed=seed).returns for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes() != other.tobytes()
    drawn = np.asarray(policy.act(np.zeros((300, 20)), key=3).discrete)
    assert 0.2 < np.mean(drawn == RIGHT) < 0.5
    straight = jaxrl.load(tmp_path / "run", deterministic=True)
    assert (np.asarray(straight.act(np.zeros((300, 20))).discrete) == RIGHT).all()


TEAM = {"group": [1.0, 0.0, -1.0, -1.0], "own": [0.5, 0.25, 0.0, 2.0]}


def test_teams_are_added_up_apart() -> None:
    """Two teams of two; the second member dies at once, the rest is over after two decisions."""
    spec = make_spec((20,), branches=(3,))

    def view(alive: Any) -> Any:
        return jaxrl.TeamView((jnp.zeros((4, 20)),), jnp.ones((4, 3), bool), alive)

    def reset(key: Any, parameters: Any) -> Any:
        return jnp.int32(0), view(jnp.ones(4, bool))

    def step(key: Any, clock: Any, actions: Any) -> Any:
        alive, over = jnp.array([True, clock == 0, True, True]), clock == 1
        stays = jnp.array([True, False, True, True]) & ~over
        result = jaxrl.TeamStep(
            view=view(stays),
            reward=jnp.array(TEAM["own"]) * alive,
            group_reward=jnp.array(TEAM["group"]) * alive,
            terminated=alive & ~stays,
            truncated=jnp.zeros(4, bool),
            over=over,
            stats={},
        )
        return clock + 1, result

    env = jaxrl.JaxEnv("Teams", spec, 2, {}, reset, step, teams=2)
    settings = ppo_settings(**SMALL)
    trained = learner(spec, settings)
    policy = jaxrl.Policy(_trained(spec, settings, trained))
    played = policy.rollout(env, 2)
    np.testing.assert_allclose(played.returns, [[1.0, 0.25, 0.0, 4.0]] * 2)
    np.testing.assert_allclose(played.group_returns, [[2.0, -2.0]] * 2)
    assert played.lengths.tolist() == [2, 2]


def _trained(spec: BehaviorSpec, settings: Any, state: TrainState) -> Trained:
    return Trained("Teams", spec, settings, jaxrl.make_ppo(spec, settings), state.policy, 0, {}, "here")


def test_memory_goes_from_one_decision_to_the_next() -> None:
    spec = make_spec((3,), continuous=2)
    memory = {"memory_size": 6, "sequence_length": 4}
    settings = ppo_settings(**SMALL, network_settings__memory=memory, network_settings__deterministic=True)
    trained = _trained(spec, settings, learner(spec, settings))
    policy, key = jaxrl.Policy(trained), jax.random.key(0)
    seen, carry, given = np.random.default_rng(0).normal(size=(3, 2, 3)).astype(np.float32), None, None
    mask = jnp.ones((2, 0), bool)
    for time, obs in enumerate(seen):
        if carry is None:
            carry = {name: jnp.zeros((2, *shape)) for name, shape in trained.algorithm.memories}
        expected = trained.algorithm.act(trained.policy, (obs,), mask, carry, key)
        carry = expected.carry
        action = policy.act(obs, memory=given)
        given = action.memory
        np.testing.assert_allclose(action.continuous, expected.sent.continuous, atol=1e-6)
        assert time == 0 or not np.allclose(action.continuous, policy.act(obs).continuous)  # it does remember
    forgotten = policy.act(seen[0], memory=given, begin=[True, False])
    fresh = policy.act(seen[0])
    np.testing.assert_allclose(forgotten.continuous[0], fresh.continuous[0], atol=1e-6)
    assert not np.allclose(forgotten.continuous[1], fresh.continuous[1])
    with pytest.raises(jaxrl.PolicyError, match=r"memory: is not that of agents \[1\]"):
        policy.act(seen[0][:1], memory=given)


@pytest.mark.parametrize("alone", [False, True])
def test_demonstrations_may_be_gone(tmp_path: Path, alone: bool) -> None:
    """What was learned from is not needed to play, GAIL being one of two signals of a shared critic, or alone."""
    spec, demo = make_spec((3,), branches=(2,)), tmp_path / "gone.demo"
    write(demo, "Any", spec, [Pair([np.zeros(3)], discrete=[1]), Pair([np.zeros(3)], done=True)])
    signals = {"gail": {"demo_path": str(demo)}} | ({} if alone else {"extrinsic": {}})
    shown = {"reward_signals": signals, "behavioral_cloning": {"demo_path": str(demo)}}
    shown["hyperparameters__shared_critic"] = not alone
    memory = {"memory_size": 6, "sequence_length": 4}
    settings = ppo_settings(**SMALL, network_settings__memory=memory, **shown)
    run = save(tmp_path / "run", "Any", spec, settings, towards(learner(spec, settings), 1))
    demo.unlink()
    for deterministic in (False, True):
        policy = jaxrl.load(run, deterministic=deterministic)
        assert policy.act(np.zeros(3, np.float32), key=jax.random.key(0)).discrete.tolist() == [1]


def test_connectors_stand_in_front_of_it() -> None:
    """The last two observations, and the reward of the decision before: what the policy sees is put together here."""
    spec = make_spec((3,), continuous=2)
    chain = [{"type": "frame_stack", "frames": 2}, {"type": "previous_reward"}]
    settings = ppo_settings(**SMALL, connectors=chain, network_settings__deterministic=True)
    trained = _trained(spec, settings, learner(spec, settings))
    policy = jaxrl.Policy(trained)
    old, new = np.random.default_rng(0).normal(size=(2, 1, 3)).astype(np.float32)
    first = policy.act(old)
    second = policy.act(new, memory=first.memory, reward=[0.5])
    shown = (np.concatenate([old, new], axis=-1), np.full((1, 1), 0.5, np.float32))
    expected = trained.algorithm.act(trained.policy, shown, jnp.ones((1, 0), bool), (), jax.random.key(0))
    np.testing.assert_allclose(second.continuous, expected.sent.continuous, atol=1e-6)
    assert not np.allclose(second.continuous, policy.act(new).continuous)


def test_seeds_checkpoints_and_behaviors_are_chosen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = ppo_settings(**SMALL)
    state = learner(BASIC.spec, settings)
    both = jax.tree.map(lambda *x: jnp.stack(x), towards(state, 0), towards(state, 1))
    of_run = {"seeds": 2, "num_areas": 1, "first_seed": 5}
    run = save(tmp_path / "run", "Basic", BASIC.spec, settings, both, **of_run)
    save(run, "Basic", BASIC.spec, settings, towards(state, RIGHT), step=300)
    (run / "run_logs").mkdir()
    (run / "run_logs" / "training_status.json").write_text(json.dumps({"Basic": {"seed": 6}, "metadata": {}}))

    def first(**chosen: Any) -> int:
        return int(jaxrl.load(run, **chosen).act(np.zeros(20), key=0).discrete[0])

    checkpoint.folders.point_at(run / "Basic" / "Basic-700", 700)
    assert (first(), first(seed=5), first(seed=6), first(checkpoint=300)) == (1, 0, 1, RIGHT)
    assert first(checkpoint=run / "Basic" / "Basic-300") == RIGHT and not caplog.text
    with pytest.raises(RunFolderError, match="has no seed 7, it holds seeds 5 to 6"):
        first(seed=7)
    with pytest.raises(RunFolderError, match="no checkpoint of step 4, only 300, 700"):
        first(checkpoint=4)
    with pytest.raises(RunFolderError, match="holds one learner, whose seed is not noted"):
        first(checkpoint=300, seed=5)
    save(run, "Other", BASIC.spec, settings, towards(state, RIGHT))
    with pytest.raises(RunFolderError, match="holds policies for Basic, Other; say which one with `behavior`"):
        first()
    assert first(behavior="Other") == RIGHT


WRONG = [
    (lambda p: p.act(np.zeros(19), key=0), r"VectorSensor_size20: got shape \(19,\), expected \(20,\)"),
    (lambda p: p.act(np.zeros(20)), "key: this policy samples its actions"),
    (lambda p: p.act((np.zeros(20), np.zeros(20)), key=0), "observations: got 2, expected 1"),
    (lambda p: p.act({"Rays": np.zeros(20)}, key=0), "got Rays, expected VectorSensor_size20"),
    (lambda p: p.act(np.zeros(20), [True, True], key=0), r"action_mask: got shape \(2,\), expected \(3,\)"),
    (lambda p: p.act(np.zeros((2, 20)), key=0, begin=[True]), r"begin: got shape \(1,\), expected \(2,\)"),
    (lambda p: p.rollout("jax:ball3d"), r"3DBall: this policy of Basic does not fit it \(.*shape: \[20\]"),
    (lambda p: p.rollout(BASIC, 0), "episodes = 0"),
    (lambda p: p.rollout(BASIC, 1, parameters={"gravity": 1.0}), "Basic has no gravity"),
]


@pytest.mark.parametrize(("call", "words"), WRONG, ids=[words[:30] for _, words in WRONG])
def test_mistakes_are_one_sentence(goes_right: jaxrl.Policy, call: Any, words: str) -> None:
    with pytest.raises(jaxrl.PolicyError, match=words) as error:
        call(goes_right)
    assert "\n" not in str(error.value)


def test_images_are_bytes_or_numbers() -> None:
    spec = BehaviorSpec((ObservationSpec("camera", (3, 5, 5), dtype="uint8"),), ActionSpec(1, ()))
    settings = ppo_settings(
        **SMALL, network_settings__vis_encode_type="fully_connected", network_settings__deterministic=True
    )
    trained = _trained(spec, settings, learner(spec, settings))
    picture = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 5), np.uint8)
    noted = jaxrl.Policy(trained).act(picture).continuous
    unnoted = trained._replace(spec=spec._replace(observations=(spec.observations[0]._replace(dtype="float32"),)))
    np.testing.assert_allclose(jaxrl.Policy(unnoted).act(picture).continuous, noted)  # an older checkpoint
    np.testing.assert_allclose(jaxrl.Policy(unnoted).act(picture / 255.0).continuous, noted, atol=1e-6)
    with pytest.raises(jaxrl.PolicyError, match="camera: got float64, expected uint8"):
        jaxrl.Policy(trained).act(picture / 255.0)


def test_a_checkpoint_notes_its_spec() -> None:
    moving = (DimensionProperty.NONE, *[DimensionProperty.TRANSLATIONAL_EQUIVARIANCE] * 2)
    variable = (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
    spec = BehaviorSpec(
        (
            ObservationSpec("rays", (7,)),
            ObservationSpec("goal", (2,), observation_type=ObservationType.GOAL_SIGNAL),
            ObservationSpec("camera", (3, 8, 8), moving, dtype="uint8"),
            ObservationSpec("tiles", (20, 3), variable),
        ),
        ActionSpec(2, (3, 4)),
    )
    written = json.loads(json.dumps(spec_to_json(spec)))
    assert spec_from_json(written) == spec
    assert written["observations"][0] == {"name": "rays", "shape": [7], "type": "default"}


def changed(run: Path, change: Any) -> Path:
    """The run with other contents of checkpoint.json."""
    path = next(run.glob("*/*/" + METADATA))
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    (path.parent / manifest.MANIFEST).unlink()
    manifest.write(path.parent)
    return run


def newer_settings(document: Any) -> None:
    document["settings"]["dreams"] = True
    document["versions"]["jaxrl_version"] = "9.1.0"


def newer_format(document: Any) -> None:
    document["format"] = 99
    document["versions"]["jaxrl_version"] = "9.1.0"


@pytest.mark.parametrize("change", [newer_settings, newer_format])
def test_a_newer_version_is_named(tmp_path: Path, change: Any) -> None:
    settings = ppo_settings(**SMALL)
    run = save(tmp_path / "run", "Basic", BASIC.spec, settings, learner(BASIC.spec, settings))
    with pytest.raises(CheckpointError, match=r"written by jaxrl 9\.1\.0") as error:
        jaxrl.load(changed(run, change))
    assert "\n" not in str(error.value)


def test_so_is_that_of_a_configuration(tmp_path: Path) -> None:
    settings = ppo_settings(**SMALL)
    run = save(tmp_path / "run", "Basic", BASIC.spec, settings, learner(BASIC.spec, settings))
    (run / "configuration.yaml").write_text("env_settings: {dreams: true}\ndefault_settings: {}\n")
    with pytest.raises(SettingsError, match=r"env_settings\.dreams: unknown key"):
        jaxrl.load(run)
    changed(run, lambda document: document["versions"].update(jaxrl_version="9.1.0"))
    with pytest.raises(SettingsError, match=r"cannot read it: env_settings\.dreams: .* written by jaxrl 9\.1\.0"):
        jaxrl.load(run)


def test_another_environment_than_its_own(basic: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no policy for behavior 3DBall, only for Basic"):
        jaxrl.load(basic, "jax:ball3d")
    with pytest.raises(CheckpointError, match=r"does not fit Basic .*action size \(discrete branches\)"):
        jaxrl.load(basic, BASIC._replace(spec=BASIC.spec._replace(action=ActionSpec(0, (5,)))))
