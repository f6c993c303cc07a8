"""Names of metrics and the tags that they become."""

from __future__ import annotations

import pytest

from jaxrl.artifacts.metrics.statistics import moved_names, scene_tag, tag_of


@pytest.mark.parametrize(
    ("metric", "tag"),
    [
        ("policy_loss", "Losses/Policy Loss"),
        ("value_loss", "Losses/Value Loss"),
        ("baseline_loss", "Losses/Baseline Loss"),
        ("entropy", "Policy/Entropy"),
        ("learning_rate", "Policy/Learning Rate"),
        ("epsilon", "Policy/Epsilon"),
        ("beta", "Policy/Beta"),
        ("value_estimate/extrinsic", "Policy/Extrinsic Value Estimate"),
        ("baseline_estimate/extrinsic", "Policy/Extrinsic Baseline Estimate"),
        ("value_estimate/gail", "Policy/Gail Value Estimate"),
        ("reward/rnd", "Policy/Rnd Reward"),
        # ML-Agents' tags that follow from the rule
        ("q1_loss", "Losses/Q1 Loss"),
        ("curiosity_forward_loss", "Losses/Curiosity Forward Loss"),
        ("rnd_loss", "Losses/RND Loss"),
        ("gail_policy_estimate", "Policy/GAIL Policy Estimate"),
        ("gail_kl_loss", "Losses/GAIL KL Loss"),
        ("discrete_entropy_coeff", "Policy/Discrete Entropy Coeff"),
        ("value/extrinsic", "Policy/Extrinsic Value"),
        # nobody's
        ("kl_divergence", "Policy/KL Divergence"),
        ("accuracy/gail", "Policy/GAIL Accuracy"),
        ("loss/gail", "Losses/GAIL Loss"),
        ("kl_loss/gail", "Losses/GAIL KL Loss"),
        ("beta/gail", "Policy/GAIL Beta"),
        ("grad_mag_loss/gail", "Policy/GAIL Grad Mag Loss"),
        ("policy_estimate/gail", "Policy/GAIL Policy Estimate"),
        ("loss/rnd", "Losses/RND Loss"),
        ("reward/gail", "Policy/Gail Reward"),
        ("value/gail", "Policy/Gail Value"),
        ("forward_loss/curiosity", "Losses/Curiosity Forward Loss"),
        ("policy_loss/gail", "Losses/GAIL Policy Loss"),
    ],
)
def test_tags(metric: str, tag: str) -> None:
    assert tag_of(metric) == tag


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("Environment/Cumulative Reward", "Scene/Environment/Cumulative Reward"),
        ("Environment/Lesson Number/wall", "Scene/Environment/Lesson Number/wall"),
        ("Evaluation/Speed", "Scene/Evaluation/Speed"),
        ("Policy/Entropy", "Scene/Policy/Entropy"),
        ("Step", "Scene/Step"),
        ("Environment/Wall Hits", "Environment/Wall Hits"),
        ("Agent/Cumulative Reward", "Agent/Cumulative Reward"),
    ],
)
def test_a_scenes_statistics_are_never_under_a_tag_of_the_trainers(name: str, tag: str) -> None:
    assert scene_tag(name) == tag and moved_names([tag]) == ([name] if tag != name else [])


def test_a_stream_without_a_name_is_the_first_signals() -> None:
    assert tag_of("value_estimate", "curiosity") == "Policy/Curiosity Value Estimate"
    assert tag_of("value_estimate/extrinsic", "curiosity") == "Policy/Extrinsic Value Estimate"
