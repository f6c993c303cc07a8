"""Reward signals by the name they have in `reward_signals`. A new signal is one file and one line here."""

from jaxrl.rewards.extrinsic import EXTRINSIC
from jaxrl.rewards.interface import RewardSignal

REWARD_SIGNALS: dict[str, RewardSignal] = {"extrinsic": EXTRINSIC}
