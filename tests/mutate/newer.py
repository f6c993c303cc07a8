"""Faults in learners, their files and runs of several: rows L of behaviours.md."""

from __future__ import annotations

from tests.mutate.runner import Mutation

REPLAY, OFF_POLICY = "learning/replay.py", "algorithms/off_policy.py"
SAC, SAC_PARTS = "algorithms/sac.py", "algorithms/sac_parts.py"
SIGNALS, RND, GAIL, NORMALIZED = (f"rewards/{name}.py" for name in ("signals", "rnd", "gail", "normalized"))
CLONING, IMITATION = "learning/cloning.py", "training/host/imitation.py"
POPULATION, RECENT = (f"training/compiled/{name}.py" for name in ("population", "recent_returns"))
TEAM, COMPILED_LEAGUE = "algorithms/team.py", "training/compiled/league.py"
KIND_LEARNER, TEAM_POLICY, LEAGUE, GHOSTS, EVALUATION, EXACT = (
    f"training/host/{name}.py" for name in ("team_learner", "team_policy", "league", "ghosts", "evaluation", "exact")
)
COMPILED_SAVER = "training/compiled/saver.py"
SAVER, TREE, REPLAY_FILE = "training/saver.py", "artifacts/checkpoint/tree.py", "artifacts/checkpoint/replay.py"

NEWER = (
    # Replay
    Mutation("L1", REPLAY, "reward=rollout.reward + rollout.group_reward,", "reward=rollout.reward,"),
    Mutation("L1", REPLAY, "action_mask=rollout.action_mask,", "action_mask=jnp.ones_like(rollout.action_mask),"),
    Mutation("L1", REPLAY, "return at(replay, replay.oldest + drawn,", "return at(replay, drawn,"),
    Mutation("L1", REPLAY, "number + size >= count)", "number + size > count)"),
    Mutation("L1", REPLAY, "seen_by(jnp.where(kept.seen, kept.after, kept.at))", "seen_by(kept.after)"),
    Mutation(
        "L1",
        REPLAY,
        "(size,), 0, jnp.maximum(count, 1)).astype(jnp.uint32)\n    return at(",
        "(size,), 0, jnp.maximum(count - 1, 1)).astype(jnp.uint32)\n    return at(",
    ),
    Mutation("L2", REPLAY, "numbers = replay.oldest + drawn\n", "numbers = drawn\n", "sequences_go_when"),
    Mutation(
        "L2", REPLAY, "jnp.full(rollout.acted.shape, replay.observed))", "jnp.full(rollout.acted.shape, observed))"
    ),
    Mutation(
        "L2",
        REPLAY,
        "lambda x: where(first, x[:, None], 0), found.carry)",
        "lambda x: jnp.broadcast_to(x[:, None], (*valid.shape, *x.shape[1:])), found.carry)",
    ),
    Mutation("L2", REPLAY, "return (index >= burn_in) |", "return (index > burn_in) |", "burn_in"),
    # SAC
    Mutation("L2", SAC, "along(none), along(after)", 'along(none), along(stored["critic"])', "burn_in"),
    Mutation(
        "L3",
        OFF_POLICY,
        "jnp.maximum(step - jnp.maximum(state.step, hyper.buffer_init_steps), 0)",
        "jnp.maximum(step - state.step, 0)",
        "as_many_updates",
    ),
    Mutation(
        "L3",
        OFF_POLICY,
        "return learner, owed - count.astype(jnp.float32), told",
        "return learner, jnp.zeros_like(owed), told",
        "a_turn_makes",
    ),
    Mutation("L3", OFF_POLICY, "x / jnp.maximum(count, 1), before)", "x, before)", "a_turn_makes"),
    Mutation(
        "L3",
        OFF_POLICY,
        "there = (replays.held(store) >= minibatch) | (counts.fresh >= hyper.batch_size)",
        "there = replays.held(store) >= minibatch",
        "both_counts",
    ),
    Mutation("L3", SAC, "draw, lambda number: key_of(-1 - number)", "draw, key_of", "their_own_pace"),
    Mutation("L3", SAC, "    state = state.replace(key=next_key)\n", "", "their_own_pace"),
    Mutation(
        "L3",
        SAC,
        'own["signals_owed"] + fresh / hyper.reward_signal_steps_per_update',
        'own["signals_owed"] + fresh / hyper.steps_per_update',
        "their_own_pace",
    ),
    Mutation(
        "L4",
        SAC,
        'optax.incremental_update(moved["critic"]["value"], state',
        'optax.incremental_update(state.critic["value"], state',
        "f_sac_continuous",
    ),
    Mutation(
        "L4",
        SAC,
        "applied(parts.q)(still(critic[name]), obs, action,",
        "applied(parts.q)(critic[name], obs, action,",
        "f_sac_continuous",
    ),
    Mutation(
        "L4",
        SAC_PARTS,
        "return jnp.concatenate(chosen, axis=-1).mean(-1)",
        "return jnp.concatenate(chosen, axis=-1).sum(-1)",
        "f_sac_discrete",
    ),
    Mutation(
        "L5",
        SAC_PARTS,
        "update_all(state.policy.normalizer, rollout.obs, rollout.acted)",
        "update_all(state.policy.normalizer, rollout.obs, rollout.present)",
    ),
    Mutation("L5", SAC_PARTS, "signals=signals.watch(state.signals, rollout)", "signals=state.signals"),
    # Reward signals
    Mutation("L6", RND, "for k in jax.random.split(key))", "for k in (key, key))", "begin_apart"),
    Mutation("L6", SIGNALS, "jax.random.fold_in(key, _INIT + i)", "jax.random.fold_in(key, _INIT)", "begin_apart"),
    Mutation("L6", SIGNALS, "found) for name in watching}", "found) for name in watching[:1]}", "watches"),
    Mutation(
        "L6", SIGNALS, "asked[name] is None else not asked[name])", "asked[name] is None else asked[name])", "key_says"
    ),
    Mutation(
        "L6",
        RND,
        'update_all(state["normalizer"], seen.obs, seen.valid)',
        'update_all(state["normalizer"], seen.obs, seen.seen)',
        "watches",
    ),
    Mutation("L7", "rewards/curiosity.py", 'state["learned"] & seen.seen, paid', "seen.seen, paid", "curiosity_pays"),
    Mutation(
        "L7",
        "rewards/curiosity.py",
        "1.0 / jnp.where(strength > 0, strength, 1.0), jnp.inf)",
        "1.0, jnp.inf)",
        "g_curiosity",
    ),
    Mutation("L8", NORMALIZED, "found, seen.valid)", "found, jnp.ones_like(seen.valid))", "deviation"),
    Mutation(
        "L8",
        NORMALIZED,
        '"paid": statistics}\n\n    def gradient',
        '"paid": state["paid"]}\n\n    def gradient',
        "deviation",
    ),
    Mutation(
        "L8",
        "networks/normalizer.py",
        "jnp.square(shift) * (state.count * share)",
        "jnp.square(shift) * state.count",
        "deviation",
    ),
    Mutation("L9", GAIL, "apply=apply, as_sent=True)", "apply=apply)", "compared"),
    Mutation(
        "L9",
        SIGNALS,
        "made.gradient(states[name], self._shown(made, found), at)",
        "made.gradient(states[name], found, at)",
        "compared",
    ),
    Mutation(
        "L9", GAIL, "over = demonstration.done & ~demonstration.interrupted", "over = demonstration.done", "no_end"
    ),
    Mutation("L9", GAIL, "(n,), 0, len(over))", "(n,), 0, len(over) - 1)", "are_drawn"),
    Mutation("L9", GAIL, "normalizer.update_in_parts(known, demonstration.obs)", "known", "are_drawn"),
    Mutation(
        "L9",
        GAIL,
        "jax.random.normal(keys[2], (3, n, CODE))",
        "jnp.broadcast_to(jax.random.normal(keys[2], (n, CODE)), (3, n, CODE))",
        "noise",
    ),
    Mutation(
        "L9",
        GAIL,
        "masked_mean(jnp.log(1.0 - of_policy + EPSILON), valid)",
        "jnp.log(1.0 - of_policy + EPSILON).mean()",
        "does_not_count",
    ),
    # Cloning
    Mutation("L10", CLONING, "valid = at >= 0\n", "valid = at > 0\n", "sequences_end"),
    Mutation(
        "L10",
        CLONING,
        "masked_mean(jnp.stack(rows, axis=-1).mean(-1), batch.valid)",
        "jnp.stack(rows, axis=-1).mean()",
        "the_loss",
    ),
    Mutation(
        "L10",
        CLONING,
        "masked_mean(jnp.square(drawn - batch.action.continuous).mean(-1), batch.valid)",
        "jnp.square(drawn - batch.action.continuous).mean()",
        "the_loss",
    ),
    Mutation(
        "L10",
        CLONING,
        "np.flatnonzero(demonstration.done | demonstration.last)",
        "np.flatnonzero(demonstration.done)",
        "sequences_end",
    ),
    Mutation(
        "L10", CLONING, "(chosen if among is None else chosen[among])[:, None])", "chosen[:, None])", "sequences_end"
    ),
    Mutation(
        "L10",
        CLONING,
        'return {"optimizer": moments, "rate": schedule(step)}',
        'return {"optimizer": kept["optimizer"], "rate": schedule(step)}',
        "an_epoch",
    ),
    Mutation(
        "L10",
        CLONING,
        "lambda k: jax.random.permutation(k, count)",
        "lambda k: jax.random.randint(k, (count,), 0, count)",
        "an_epoch",
    ),
    Mutation(
        "L11",
        IMITATION,
        "in_sequences(found, length, ~among), in_sequences",
        "in_sequences(found, length), in_sequences",
        "is_not_learned_from",
    ),
    Mutation(
        "L11",
        IMITATION,
        "rows = learned.places[learned.places >= 0]",
        "rows = learned.places.reshape(-1)",
        "is_not_learned_from",
    ),
    Mutation(
        "L11",
        IMITATION,
        "normal)) * int(rows.valid.sum())",
        "normal)) * rows.valid.size",
        "is_not_learned_from",
    ),
    Mutation("L11", IMITATION, "np.concatenate([[0], np.cumsum(ends)[:-1]])", "np.cumsum(ends)", "whole_episodes"),
    Mutation(
        "L11", IMITATION, "key, used = jax.random.split(state.key)", "key, used = state.key, state.key", "draws_anew"
    ),
    # Populations
    Mutation("L12", POPULATION, "frozen=part.frozen[found.parents]", "frozen=part.frozen"),
    Mutation("L12", POPULATION, "np.random.default_rng([self.seed, step])", "np.random.default_rng(self.seed)"),
    Mutation(
        "L12",
        POPULATION,
        "statistics.frozen &= reports[part.name].frozen[found.parents]",
        "statistics.frozen &= reports[part.name].frozen",
    ),
    Mutation("L12", POPULATION, "train=train.replace(key=part.train.key),", "train=train,"),
    Mutation(
        "L12", POPULATION, "choices = sorted(map(float, space.choices))", "choices = list(map(float, space.choices))"
    ),
    Mutation(
        "L12",
        POPULATION,
        "min(max(value * factor, space.low), space.high)",
        "value * factor",
    ),
    Mutation("L13", POPULATION, "left = self.every - self.members.step % self.every", "left = self.every"),
    Mutation(
        "L13",
        POPULATION,
        "        before = self.members.step\n        state = super().look(state, reports)\n",
        "        state = super().look(state, reports)\n        before = self.members.step\n",
    ),
    Mutation("L13", POPULATION, "label is None or self.members.over else", "label is None else"),
    Mutation("L13", POPULATION, '"parent": seeds[parent]', '"parent": parent'),
    Mutation("L13", POPULATION, 'int(each["step"]) < row["step"] and', 'int(each["step"]) <= row["step"] and'),
    # Teams
    Mutation(
        "L14",
        TEAM,
        "normalize_all(policy.normalizer, shown)",
        "normalize_all(policies[0].normalizer, shown)",
        "remembered",
    ),
    Mutation(
        "L14", TEAM, "signals=kind.signals.watch(state.signals, own))", "signals=state.signals)", "signals_of_each"
    ),
    Mutation(
        "L14",
        TEAM,
        "kinds[name].parts.watch(state.own, team))",
        "kinds[name].parts.watch(state.own, rollouts[name]))",
        "credited",
    ),
    Mutation(
        "L14",
        TEAM,
        "of_kinds(extrinsic.group_reward(team), rollouts)",
        "{name: extrinsic.group_reward(own) for name, own in rollouts.items()}",
        "credited",
    ),
    Mutation("L15", "training/host/team.py", "return {of: seen[of] for of in self._wanted[team]}", "return dict(seen)"),
    Mutation(
        "L15",
        "training/host/team.py",
        "behavior.count(finished[behavior.name])",
        "behavior.count(sum(finished.values()))",
    ),
    Mutation("L15", KIND_LEARNER, "return any(kind.goes_on()", "return all(kind.goes_on()"),
    Mutation("L15", KIND_LEARNER, "= state[name], kind.updates + 1", "= state[self.name], kind.updates + 1"),
    Mutation("L15", KIND_LEARNER, "kind.earned.add(metrics[name], rows)", "kind.earned.add(metrics[self.name], rows)"),
    Mutation("L15", KIND_LEARNER, "found, self._told = self._told, {}", "found = self._told"),
    Mutation("L15", TEAM_POLICY, "noise.noise_key(kind.run_key, self", "noise.noise_key(kinds[0].run_key, self"),
    Mutation("L15", TEAM_POLICY, "            kind.connected = remembered\n", "            pass\n"),
    Mutation("L15", TEAM_POLICY, "            kind.forget()\n", "            pass\n"),
    Mutation("L15", TEAM_POLICY, "kind.watch(rows)", "kind.watch(ingested.steps)"),
    Mutation("L15", TEAM_POLICY, "self.paged.slots.own(kind, places)", "places"),
    # Self-play and leagues
    Mutation(
        "L16",
        "training/self_play/pool.py",
        "first = saved % window if len(slots) == window else 0",
        "first = 0",
    ),
    Mutation(
        "L16",
        "training/self_play/league.py",
        "self.elo, self.games, self.score, self.begun = elo, 0.0, 0.0, step",
        "self.elo, self.games, self.begun = elo, 0.0, step",
    ),
    Mutation("L17", LEAGUE, "[foe.side.pool.elo for foe in foes]", "[side.pool.elo for foe in foes]"),
    Mutation("L17", LEAGUE, "            standing.swapped = standing.ghost_step\n", ""),
    Mutation("L17", LEAGUE, "Weights(copied(exploiter.state.policy))", "Weights(exploiter.state.policy)"),
    Mutation("L17", LEAGUE, "exploiter.step - standing.begun)", "main.step - standing.begun)"),
    Mutation(
        "L17", LEAGUE, "self._renew(own, main, exploiter, standing.joined)", "self._renew(own, main, exploiter, 0)"
    ),
    Mutation(
        "L18",
        GHOSTS,
        "steps, self._counted[name] = finished - self._counted[name], finished",
        "steps = finished - self._counted[name]",
    ),
    Mutation("L18", GHOSTS, "        self._frozen[name].actor.decisions = decisions\n", ""),
    Mutation("L18", GHOSTS, "        self._acting[name] = weights\n        self._frozen", "        self._frozen"),
    Mutation("L19", COMPILED_LEAGUE, "joined=state.joined + left", "joined=state.joined + which", "who_has_won"),
    Mutation("L19", COMPILED_LEAGUE, "begun=jnp.where(which, step, state.begun)", "begun=state.begun", "who_has_won"),
    Mutation(
        "L19",
        COMPILED_LEAGUE,
        "other.replace(step=train.step, key=train.key)",
        "other.replace(step=train.step)",
        "begins_anew_with",
    ),
    Mutation(
        "L19",
        COMPILED_LEAGUE,
        "shows = ~leads(len(games), 1 + settings.exploiters) & (games > 0)",
        "shows = games > 0",
        "counted",
    ),
    # Evaluation
    Mutation("L20", EVALUATION, "            policy.actor.begin_anew()\n", "            pass\n", "the_one_before"),
    Mutation(
        "L20", EVALUATION, "        self._policies[name].actor.policy = behavior.state.policy\n", "", "policy_of_now"
    ),
    Mutation("L20", EVALUATION, "seeds = [(options.seed + resets) % 2**31] if", "seeds = None if", "policy_of_now"),
    Mutation(
        "L20",
        "training/compiled/evaluation.py",
        "jax.random.key(options.seed)",
        "jax.random.key(0)",
        "seed_of_the_evaluation",
        long=True,
    ),
    Mutation("L21", "training/judging.py", "np.where(high, row + 1, 0)[written]", "(row + high)[written]", "patience"),
    Mutation("L21", "training/judging.py", "self._reached[tag] |= row", "self._reached[tag] = row", "every_seed"),
    Mutation(
        "L21",
        "training/judging.py",
        "np.where(self._waited_for, _values(summaries, self._keep_best), np.nan)",
        "_values(summaries, self._keep_best)",
        "best_moment",
    ),
    Mutation("L21", "training/judging.py", "int(np.nanargmax(values))", "int(np.argmax(values))", "best_moment"),
    # Checkpoints
    Mutation(
        "L22",
        "artifacts/checkpoint/store.py",
        "{path: x.copy() for path, x in trees.to_arrays(state).items()}",
        "trees.to_arrays(state)",
    ),
    Mutation(
        "L22", SAVER, "jax.tree.map(np.array, jax.device_get(tree))", "jax.tree.map(np.asarray, jax.device_get(tree))"
    ),
    Mutation("L22", TREE, "return jnp.array(value, dtype=leaf.dtype)", "return jnp.asarray(value, dtype=leaf.dtype)"),
    Mutation("L22", TREE, "(jnp.array(value), impl=jax.random.key_impl(leaf))", "(jnp.array(value))"),
    Mutation(
        "L23",
        "artifacts/checkpoint/folder.py",
        "[item for item in found if item.step <= current.step][:-keep]",
        "found[:-keep]",
        "lies_ahead",
    ),
    Mutation(
        "L23",
        EXACT,
        "for saved, moment in [item for item in whole if _has_replays(folder, item[0])] or whole:",
        "for saved, moment in whole:",
        "replays_are_there",
    ),
    Mutation("L23", EXACT, "if item.step < found[0][1].step:", "if item.step > found[0][1].step:", "all_have"),
    Mutation("L23", EXACT, "([run_seed, worker, *moment])", "([run_seed, *moment])", "seeds_depend"),
    Mutation("L23", REPLAY_FILE, '{**document, "leaves": self.leaves}', "{**document}", "last_number"),
    Mutation("L23", SAVER, "keep = 2  # the moment before", "keep = 1  # the moment before", "the_moment_before"),
    Mutation("L23", REPLAY_FILE, "min(rows, plain.shape[axis] - start)", "rows", "last_number"),
    Mutation("L23", REPLAY_FILE, "if together and self.path.exists():", "if False:", "last_number"),
    Mutation("L24", SAVER, " if key != policy_gradient.CLONING]", "]"),
    Mutation("L24", SAVER, '("policy", "critic", "signals", *own)', '("policy", "critic", *own)'),
    Mutation(
        "L26",
        COMPILED_SAVER,
        "saved.replace(frozen=saved.frozen if some else fresh.frozen)",
        "saved.replace(frozen=fresh.frozen)",
    ),
    Mutation("L26", COMPILED_SAVER, "values=saved.values or fresh.values", "values=fresh.values"),
    Mutation("L25", RECENT, "newer_total=jnp.where(enough, 0.0, total)", "newer_total=total"),
    Mutation("L25", RECENT, "older_count=jnp.where(enough, count, tally.older_count)", "older_count=tally.older_count"),
)
