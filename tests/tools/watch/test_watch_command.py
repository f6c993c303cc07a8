"""Runs of the host loop, watched through the command: a served environment is drawn as the compiled one is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

CONFIGS = Path(__file__).parents[3] / "configs"


def jaxrl(*words, cwd):
    command = [sys.executable, "-m", "jaxrl.cli", *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def short(name, path, steps):
    """A shipped configuration that ends after a few steps."""
    text = re.sub(r"max_steps: \d+", f"max_steps: {steps}", (CONFIGS / name).read_text(encoding="utf-8"))
    path.write_text(re.sub(r"buffer_size: \d+", "buffer_size: 256", text), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_trained_run_of_gymnasium_plays_and_stands_in_the_report(tmp_path):
    config = short("gymnasium/cartpole.yaml", tmp_path / "c.yaml", 30_000)
    assert jaxrl("train", config, "--run-id=cart", cwd=tmp_path).returncode == 0
    end = jaxrl("watch", "--run", "results/cart", "--deterministic", "--out", "a.gif", cwd=tmp_path)
    assert end.returncode == 0, end.stderr
    steps = int(re.search(r"CartPole-v1, CartPole-v1-\d+: reward \S+ in (\d+) steps", end.stdout).group(1))
    assert steps > 60  # random actions hold out for some 20
    end = jaxrl("report", "results/cart", "--films", "--out", "r.html", cwd=tmp_path)
    assert end.returncode == 0, end.stderr
    assert "cart: CartPole-v1-" in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_of_a_served_environment_is_drawn_as_the_compiled_one(tmp_path):
    config = short("ppo/basic.yaml", tmp_path / "c.yaml", 1_000)
    assert jaxrl("train", config, "--env", "player:basic", "--run-id=b", cwd=tmp_path).returncode == 0
    for environment, out in (("player:basic", "a.gif"), ("jax:basic", "b.gif")):
        end = jaxrl("watch", environment, "--run", "results/b", "--out", out, "--steps", 20, cwd=tmp_path)
        assert end.returncode == 0 and "Basic, Basic-" in end.stdout, end.stderr
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()
    with Image.open(tmp_path / "a.gif") as film:
        assert film.n_frames > 2


def test_films_belong_into_a_page(tmp_path):
    end = jaxrl("report", "x", "--films", "--out", "a.png", cwd=tmp_path)
    assert end.returncode == 1 and end.stderr.startswith("--films: a.png is a picture, which holds no films.")
