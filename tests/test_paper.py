"""benchmarks/paper.py: a tiny experiment from end to end, and its statistics on numbers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("scipy")


@pytest.fixture
def paper(monkeypatch):
    """The script and its helpers, imported as when it runs."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    import paper
    import paper_report
    import paper_tasks
    import paper_toy
    import paper_training

    return SimpleNamespace(
        script=paper, report=paper_report, tasks=paper_tasks, toy=paper_toy, Outcome=paper_training.Outcome
    )


def outcome(paper, returns, limit=400, points=4):
    """Seeds with the same return all the time: `points` chunks of 2 episodes each, 100 agent steps a chunk."""
    shape = (len(returns), points)
    step = np.broadcast_to(100 * np.arange(1, points + 1), shape)
    return paper.Outcome(step, np.full(shape, 2.0), np.outer(returns, np.full(points, 2.0)), limit, 1.0, 1.0)


@pytest.fixture
def quick_compilation():
    """Programs that run for a moment need not be fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.slow
def test_an_experiment_runs_and_goes_on_where_it_was(paper, quick_compilation, tmp_path, capsys, monkeypatch):
    monkeypatch.delitem(paper.toy.NETWORKS, "mlp")  # one program less to compile
    tiny = {"steps": 65, "buffer": 64, "minibatch": 32, "areas": 4, "epochs": 1, "units": 8}
    asked = (["baton_pass"], ["ppo"], 2, tmp_path, tiny, {"seeds": 2, "epochs": 3, "most": [8]})
    results, errors = paper.script.run(*asked)
    found = results["baton_pass", "ppo"]
    assert found.step.shape[0] == 2 and (found.step[:, -1] > 65).all()
    assert (found.episodes.sum(axis=1) > 0).all()  # 32 decisions, a runner that does not press lives 20
    assert errors["attention-8"].shape == (2, 3) and np.isfinite(errors["attention-8"]).all()
    paper.script.report(results, errors, tmp_path / "paper.png")
    printed = capsys.readouterr().out
    assert "| Baton Pass | PPO | 2 | 65 |" in printed and "steps/s in all seeds" in printed
    assert (tmp_path / "paper.png").read_bytes().startswith(b"\x89PNG")

    again, _ = paper.script.run(*asked)
    assert capsys.readouterr().out.count("kept: ") == 2
    np.testing.assert_array_equal(again["baton_pass", "ppo"].total, found.total)
    with pytest.raises(SystemExit, match=r"baton_pass-ppo.json is of another experiment \(seeds = 2 there, 3 now\)"):
        paper.script.run(["baton_pass"], ["ppo"], 3, *asked[3:])
    file = json.loads((tmp_path / "baton_pass-ppo.json").read_text())
    assert file["made_with"]["learning_rate"] == paper.tasks.TASKS["baton_pass"].learning_rate


def test_returns_of_a_curve(paper):
    rising = paper.Outcome(
        step=np.array([[100, 200, 300, 420]]),
        episodes=np.array([[1.0, 0.0, 2.0, 4.0]]),
        total=np.array([[1.0, 0.0, 6.0, 20.0]]),
        limit=400,
        seconds=1.0,
        compile_seconds=1.0,
    )
    curve = rising.curve(0)
    assert curve.step.tolist() == [100, 300, 420]  # no episode ended before 200
    assert curve.value.tolist() == [1.0, 3.0, 5.0]
    assert paper.report.final_returns(rising) == [5.0]  # steps from 378 on
    # 100 x 1 · 200 x (1 + 3) / 2 · 100 x (3 + 4.667) / 2, over 400
    assert paper.report.mean_returns(rising)[0] == pytest.approx((100 + 400 + 50 * (3 + 3 + 2 * 100 / 120)) / 400)


def test_points_after_the_limit_do_not_count(paper):
    longer = outcome(paper, [1.0], limit=250)
    assert longer.curve(0).step.tolist() == [100, 200, 300]


def test_a_drawn_curve_is_the_mean_of_the_episodes_in_its_window(paper, monkeypatch):
    monkeypatch.setattr(paper.report, "WINDOW", 0.5)
    monkeypatch.setattr(paper.report, "GRID", 2)
    step, episodes = np.array([[100, 200, 300, 400]]), np.array([[1.0, 1.0, 0.0, 2.0]])
    found = paper.Outcome(step, episodes, np.array([[1.0, 3.0, 0.0, 10.0]]), 400, 1.0, 1.0)
    curve = paper.report.smoothed(found, 0)
    assert curve.step.tolist() == [200, 400]
    assert curve.value.tolist() == [3.0, 5.0]  # steps 100 to 300: one episode of 3; 300 to 400: two of 5


def test_the_table_compares_with_mapoca(paper):
    results = {
        ("dungeon_escape", "poca"): outcome(paper, [1.0, 1.0, 0.5]),
        ("dungeon_escape", "ppo"): outcome(paper, [0.2, 0.5, 0.2]),
    }
    poca, ppo = (line.split(" | ") for line in paper.report.table(results).splitlines()[2:])
    assert poca[1:4] == ["MA-POCA", "3", "400"]
    assert poca[4].startswith("0.833 [0.500, 1.000]")  # of 27 resamples one is 0.5 all through, eight are 1
    assert ppo[4].startswith("0.300 [0.200, ")
    assert ppo[6].startswith("0.944 [")  # of 9 pairs 8 won and one even: 8.5 / 9
    assert poca[6].strip() == ""


def test_the_toy_draws_means_of_what_is_present(paper):
    sample = jax.jit(lambda key: paper.toy.draw(key, 8, 2000))(jax.random.key(0))
    values, present, target = map(np.asarray, sample)
    assert set(present.sum(axis=1)) == set(range(2, 11))  # 0 to 8 of ten are absorbed
    np.testing.assert_allclose(present.sum(axis=1).mean(), 6.0, atol=0.2)  # 10 - mean of 0..8
    np.testing.assert_allclose(present.mean(axis=0), 0.6, atol=0.05)  # every place alike
    assert (values[~present] == 0).all() and values[present].min() >= 0.25 and values[present].max() <= 0.75
    row = int(np.argmin(present.sum(axis=1)))
    assert float(target[row]) == pytest.approx(values[row][present[row]].mean(), rel=1e-6)


def test_minibatches_hold_the_same_agent_steps(paper):
    task = paper.tasks.TASKS["dungeon_escape"]  # room for 5, 3 at the start: 300 agent steps are 100 states
    env = paper.tasks.environment_for("dungeon_escape", "coma")
    sizes = [paper.tasks.settings_for(task, name, env).hyperparameters.batch_size for name in ("ppo", "coma")]
    assert (task.minibatch, sizes) == (300, [300, 500])


def test_coma_has_a_place_for_every_runner(paper):
    assert paper.tasks.environment_for("baton_pass", "coma").members == 22
    assert paper.tasks.environment_for("baton_pass", "poca").members == 2
