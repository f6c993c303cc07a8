"""The trained policies that come with jaxrl: small and whole, each with a command that the command line takes."""

import shlex

import numpy as np
import onnx
import onnxruntime
import pytest

from jaxrl.artifacts import zoo
from jaxrl.artifacts.checkpoint.store import read_info, require_latest
from jaxrl.artifacts.files import ArtifactError
from jaxrl.artifacts.zoo import CARD, card, cards, run_path
from jaxrl.cli.commands import parse
from jaxrl.cli.shipped import named
from jaxrl.client.policy import load
from jaxrl.jax_envs import make_environment
from jaxrl.types import JaxrlError

CARDS = cards()
NEEDED = {
    "ball3d",
    "basic",
    "baton_pass",
    "dungeon_escape",
    "food_collector",
    "grid_world",
    "push_block",
    "simple_spread",
}


def test_they_are_small():
    assert {one.name for one in CARDS} >= NEEDED
    assert sum(one.size for one in CARDS) < 5_000_000
    assert sum(path.stat().st_size for path in CARDS[0].folder.parent.rglob("*") if path.is_file()) < 5_000_000


@pytest.mark.parametrize("one", CARDS, ids=lambda one: one.name)
def test_a_card_is_whole(one):
    """Its command parses and names a shipped configuration; files are those it speaks of; it learned something."""
    program, *words = shlex.split(one.command)
    given = vars(parse(words))
    assert program == "jaxrl" and given["checkpoint_settings.run_id"] == one.name
    assert given["env_settings.env_path"] == one.environment
    chosen = named(given["config"])[0]
    assert one.algorithm in chosen.path.read_text() and one.environment.removeprefix("jax:") in (chosen.env_path or "")
    env = make_environment(one.environment)
    assert one.behavior == env.name
    onnx.checker.check_model(onnx.load(one.onnx))
    info = read_info(require_latest(one.folder / one.behavior))
    assert info.step == one.steps and info.settings["trainer_type"] == one.algorithm
    assert all(path.startswith(("train/policy/", "train/step")) for path in info.leaves), (
        "it holds more than the policy"
    )
    steps, values = one.curve.steps, one.curve.values
    assert len(steps) == len(values) >= 10 and list(steps) == sorted(set(steps)) and steps[-1] <= one.steps
    found = one.evaluation
    assert found.episodes >= 100 and found.mean > found.random + 5.0 * found.error, "no better than random actions"


@pytest.mark.parametrize("one", CARDS, ids=lambda one: one.name)
def test_no_file_names_the_machine_that_made_it(one):
    for path in one.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(word in content for word in (b"/tmp/", b"/home/", b"/work/", b"/root/")), path


def test_names(tmp_path, monkeypatch):
    assert run_path("zoo:basic") == card("basic").folder and run_path("results/first").parts == ("results", "first")
    with pytest.raises(JaxrlError, match=r"bassic: no policy of jaxrl's has that name, did you mean basic"):
        run_path("zoo:bassic")
    with pytest.raises(JaxrlError, match="there are ball3d, ball3d_sac, basic"):
        card("../zoo/basic")
    monkeypatch.setattr(zoo, "carried", lambda name: tmp_path)
    assert cards() == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / CARD).write_text('{"name": "mine"}')
    with pytest.raises(ArtifactError, match=r"card.json: no card of a policy \(about: field required\)"):
        card("mine")


@pytest.mark.parametrize(("name", "output"), [("basic", "discrete"), ("ball3d", "continuous")])
def test_the_onnx_file_is_the_policy_of_the_checkpoint(name, output):
    """The most likely actions of both, for observations that are drawn at random."""
    one = card(name)
    policy = load(f"zoo:{name}", deterministic=True)
    (sensor,) = policy.spec.observations
    obs = np.random.default_rng(0).normal(size=(64, *sensor.shape)).astype(np.float32)
    mask = np.ones((64, sum(policy.spec.action.discrete_branches)), np.float32)
    session = onnxruntime.InferenceSession(one.onnx, providers=["CPUExecutionProvider"])
    given = {"obs_0": obs, "action_masks": mask}
    wanted = {item.name for item in session.get_inputs()}
    (sent,) = session.run([f"deterministic_{output}_actions"], {key: given[key] for key in wanted})
    np.testing.assert_allclose(sent, getattr(policy.act(obs), output), rtol=1e-4, atol=1e-4)
