"""The exported file as a sampler: ONNX Runtime's samples against the policy's distribution."""

from __future__ import annotations

import numpy as np
from onnx_policies import distribution, make_masks, make_obs, make_policy, make_spec, run

from jaxrl.artifacts.onnx import export as exporter
from jaxrl.networks import actions
from jaxrl.networks.policy import squashed_network
from jaxrl.types import ActionSpec


def test_discrete_samples_follow_the_masked_softmax(tmp_path):
    spec, rows = make_spec(ActionSpec(0, (4, 3))), 20_000
    policy = make_policy(spec)
    exporter.export(tmp_path / "a.onnx", **policy)
    obs = tuple(np.repeat(x[:1], rows, axis=0) for x in make_obs(spec, seed=3))
    masks = np.repeat([[True, False, True, True, True, True, True]], rows, axis=0)
    sampled = run(tmp_path / "a.onnx", obs, masks)["discrete_actions"]
    dist = distribution(policy, make_obs(spec, seed=3))
    for branch, p in enumerate(actions.probabilities(dist, masks[:7], spec.action)):
        p = np.asarray(p[0], np.float64)
        counts = np.bincount(sampled[:, branch], minlength=len(p))
        assert (counts[p == 0.0] == 0).all()
        expected = rows * p[p > 0.0]
        assert expected.min() > 20
        # 0.999 quantile of chi-square with 2 degrees of freedom: 13.82 (both branches have three possible actions)
        assert ((counts[p > 0.0] - expected) ** 2 / expected).sum() < 13.82


def test_masked_actions_are_never_chosen(tmp_path):
    spec, rows = make_spec(ActionSpec(1, (3, 2, 5))), 4_000
    policy = make_policy(spec)
    exporter.export(tmp_path / "a.onnx", **policy)
    masks = make_masks(spec, rows, seed=4)
    outputs = run(tmp_path / "a.onnx", make_obs(spec, rows), masks)
    starts = np.array([0, 3, 5])
    for name in ("discrete_actions", "deterministic_discrete_actions"):
        assert masks[np.arange(rows)[:, None], outputs[name] + starts].all()
    assert not masks.all(axis=0)[:2].any()


def test_forbidden_actions_of_a_long_branch_are_never_chosen(tmp_path):
    """Runs of forbidden actions at the begin, in the middle and at the end, one allowed action in each gap."""
    spec, rows = make_spec(ActionSpec(0, (1000,))), 4_000
    exporter.export(tmp_path / "a.onnx", **make_policy(spec))
    allowed = np.array([300, 301, 650, 700])
    masks = np.zeros((rows, 1000), bool)
    masks[:, allowed] = True
    sampled = run(tmp_path / "a.onnx", make_obs(spec, rows), masks)["discrete_actions"]
    assert set(np.unique(sampled)) == set(allowed)


def test_a_branch_that_is_forbidden_altogether_is_uniform(tmp_path):
    spec, rows = make_spec(ActionSpec(0, (4,))), 4_000
    exporter.export(tmp_path / "a.onnx", **make_policy(spec))
    sampled = run(tmp_path / "a.onnx", make_obs(spec, rows), np.zeros((rows, 4), bool))["discrete_actions"]
    counts = np.bincount(sampled[:, 0], minlength=4)
    assert ((counts - 1000) ** 2 / 1000).sum() < 16.27  # 0.999 quantile, 3 degrees of freedom


def test_continuous_samples_have_the_mean_and_deviation_of_the_policy(tmp_path):
    spec, rows = make_spec(ActionSpec(2, ())), 20_000
    policy = make_policy(spec)
    sigma = np.array([0.2, 0.05], np.float32)
    policy["actor_params"]["params"]["heads"]["log_sigma"] = np.log(sigma)
    exporter.export(tmp_path / "a.onnx", **policy)
    obs = tuple(np.repeat(x[:1], rows, axis=0) for x in make_obs(spec))
    outputs = run(tmp_path / "a.onnx", obs, np.ones((rows, 0), bool))
    sampled, mean = outputs["continuous_actions"], outputs["deterministic_continuous_actions"][0]
    assert (np.abs(mean) < 0.6).all()  # more than five deviations away from the clip at 1
    # the environment receives a third of the raw action; five standard errors of mean and deviation
    np.testing.assert_allclose(sampled.mean(axis=0), mean, atol=5 * 0.2 / 3 / np.sqrt(rows))
    np.testing.assert_allclose(sampled.std(axis=0), sigma / 3, rtol=5 / np.sqrt(2 * rows))


def test_continuous_samples_are_clipped_at_one(tmp_path):
    spec = make_spec(ActionSpec(2, ()))
    policy = make_policy(spec)
    policy["actor_params"]["params"]["heads"]["log_sigma"] = np.full(2, 3.0, np.float32)
    exporter.export(tmp_path / "a.onnx", **policy)
    sampled = run(tmp_path / "a.onnx", make_obs(spec, 500), np.ones((500, 0), bool))["continuous_actions"]
    assert np.abs(sampled).max() == 1.0 and (np.abs(sampled) == 1.0).mean() > 0.5


def test_squashed_samples_have_the_mean_and_deviation_of_their_state_before_the_squashing(tmp_path):
    spec, rows = make_spec(ActionSpec(2, ())), 20_000
    policy = make_policy(spec, make_network=squashed_network, spread=0.05)
    exporter.export(tmp_path / "a.onnx", **policy)
    obs = make_obs(spec)
    dist = distribution(policy, obs)
    mean, sigma = (np.asarray(x, np.float64)[:2] for x in (dist.mean, np.exp(dist.log_sigma)))
    assert (np.abs(sigma[0] / sigma[1] - 1) > 0.02).all() and np.abs(mean).max() + 5 * sigma.max() < 8
    shown = tuple(np.repeat(x[:2], rows, axis=0) for x in obs)
    outputs = run(tmp_path / "a.onnx", shown, np.ones((2 * rows, 0), bool))
    sampled = np.arctanh(outputs["continuous_actions"].astype(np.float64)).reshape(2, rows, 2)
    # five standard errors of mean and deviation
    np.testing.assert_array_less(np.abs(sampled.mean(axis=1) - mean), 5 * sigma / np.sqrt(rows))
    np.testing.assert_allclose(sampled.std(axis=1), sigma, rtol=5 / np.sqrt(2 * rows))
