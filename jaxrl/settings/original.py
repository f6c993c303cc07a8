"""The keys of ML-Agents 1.1.0, which refuses any other one. Every other key of settings is jaxrl's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from jaxrl.settings.section import Location, SettingsError, dotted

Tree = Mapping[str, Any] | None
"""Keys below each key; None: everything below is the original's. Below a list are the keys of each entry."""

ANY = "*"
"""Stands for every name."""
MARK = "# --- jaxrl's own settings: read by jaxrl, a comment for ML-Agents ---"
"""First line of the block, which goes to the end of the file."""


def _keys(text: str, **below: Any) -> dict[str, Any]:
    return {**dict.fromkeys(text.split()), **below}


_NETWORK = _keys(
    "normalize hidden_units num_layers vis_encode_type goal_conditioning_type deterministic",
    memory=_keys("memory_size sequence_length"),
)
_SIGNAL = _keys("gamma strength learning_rate demo_path use_actions use_vail encoding_size", network_settings=_NETWORK)
_BEHAVIOR = _keys(
    "trainer_type max_steps time_horizon summary_freq checkpoint_interval keep_checkpoints even_checkpoints init_path "
    "threaded framework",
    hyperparameters=_keys(
        "batch_size buffer_size learning_rate learning_rate_schedule beta beta_schedule epsilon epsilon_schedule lambd "
        "num_epoch shared_critic buffer_init_steps tau steps_per_update reward_signal_steps_per_update "
        "save_replay_buffer init_entcoef"
    ),
    network_settings=_NETWORK,
    reward_signals=dict.fromkeys(("extrinsic", "gail", "curiosity", "rnd"), _SIGNAL),
    behavioral_cloning=_keys("demo_path steps strength samples_per_update num_epoch batch_size"),
    self_play=_keys("save_steps team_change swap_steps window play_against_latest_model_ratio initial_elo"),
)
_SAMPLED = _keys("sampler_type sampler_parameters")
_LESSON = _keys(
    "name",
    value=_SAMPLED,
    completion_criteria=_keys("behavior measure min_lesson_length signal_smoothing threshold require_reset"),
)
KEYS: Tree = _keys(
    "debug",
    default_settings=_BEHAVIOR,
    behaviors={ANY: _BEHAVIOR},
    env_settings=_keys(
        "env_path env_args base_port num_envs num_areas timeout_wait seed max_lifetime_restarts restarts_rate_limit_n "
        "restarts_rate_limit_period_s"
    ),
    engine_settings=_keys(
        "width height quality_level time_scale target_frame_rate capture_frame_rate no_graphics no_graphics_monitor"
    ),
    environment_parameters={ANY: {**_SAMPLED, "curriculum": _LESSON}},
    checkpoint_settings=_keys("run_id initialize_from load_model resume force train_model inference results_dir"),
    torch_settings=_keys("device"),
)
"""Keys of the original, as a tree."""


def split(content: Any, tree: Tree = KEYS) -> tuple[Any, Any]:
    """Split `content` into the keys that the original reads and the others, each as a mapping.

    Lists are in both, as long as they were, if any of their entries has a key of ours. Of `reward_signals` a null,
    which takes an inherited signal away, is ours; where one of ours stands before one of theirs, ours has an empty
    mapping for each of theirs, in their order. What is not there is an empty mapping.
    """
    if tree is None or not isinstance(content, Mapping | list):
        return content, {}
    if isinstance(content, list):
        pairs = [split(entry, tree) for entry in content]
        ours = [our_value for _, our_value in pairs]
        return [theirs for theirs, _ in pairs], ours if any(ours) else {}
    theirs, ours = {}, {}
    for key, value in content.items():
        if key not in tree and ANY not in tree:
            ours[key] = value
            continue
        below = tree.get(key, tree.get(ANY))
        if below is _SIGNAL and value is None:
            ours[key] = None
            continue
        theirs[key], our_value = split(value, below)
        if our_value != {}:
            ours[key] = our_value
    if _SIGNAL in tree.values() and list(content) != [*theirs, *(key for key in ours if key not in theirs)]:
        ours = {key: ours.get(key, {}) for key in content}
    return theirs, ours


def as_comment(content: Mapping[str, Any]) -> str:
    """Write the block; no text for no content."""
    if not content:
        return ""
    text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    return "\n".join([MARK, *(f"# {line}".rstrip() for line in text.splitlines()), ""])


def block_in(text: str) -> str:
    """Return the YAML text in the block of a file, on its own lines of the file; empty if there is none.

    Raises SettingsError for a line in the block that is no comment.
    """
    lines = text.splitlines()
    if MARK not in lines:
        return ""
    first = lines.index(MARK) + 1
    wrong = next((i for i, line in enumerate(lines[first:], first + 1) if line and not line.startswith("#")), None)
    if wrong is not None:
        raise SettingsError(f"line {wrong} stands below {MARK!r} and is no comment: move it above that line")
    block = (line.removeprefix("#").removeprefix(" ") for line in lines[first:])
    return "\n" * first + "\n".join(block)  # so that errors in it name lines of the file


def overlay(content: Any, block: Any, tree: Tree = KEYS, location: Location = ()) -> Any:
    """Merge the contents of a file with those of its block; `tree`: the original's keys there.

    Raises SettingsError where the two say different things, and for a name, as of a behavior, in the block alone.
    """
    if isinstance(content, Mapping) and isinstance(block, Mapping):
        added = {key: _added(content, key, block[key], tree, location) for key in block}
        return added if content.keys() <= added.keys() else {**content, **added}  # its order is that of the whole
    if isinstance(content, list) and isinstance(block, list) and len(content) == len(block):
        pairs = zip(content, block, strict=True)
        return [overlay(value, ours, tree, (*location, index)) for index, (value, ours) in enumerate(pairs)]
    if content != block and block != {}:
        raise SettingsError(
            f"{dotted(location)}: got {content!r} in the file and {block!r} in jaxrl's own settings at its end: "
            "remove one of them"
        )
    return content


def _added(content: Mapping[str, Any], key: str, value: Any, tree: Tree, location: Location) -> Any:
    there = (*location, key)
    below = None if tree is None else tree.get(key, tree.get(ANY))
    if key in content:
        return overlay(content[key], value, below, there)
    if value is not None and tree is not None and ANY in tree:
        raise SettingsError(
            f"{dotted(there)}: stands in jaxrl's own settings at the end alone: remove it there as well"
        )
    return value
