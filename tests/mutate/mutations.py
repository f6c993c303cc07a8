"""Faults that somebody might make, by the row of behaviours.md whose tests have to catch them."""

from __future__ import annotations

from tests.mutate.newer import NEWER
from tests.mutate.runner import Mutation

MUTATIONS = (
    *NEWER,
    # Agent processor and manager
    Mutation(
        "A1",
        "rollout/booking/occupants.py",
        "return self._of.setdefault(source, {})",
        "return self._of.setdefault(source._replace(worker=0), {})",
    ),
    Mutation(
        "A2",
        "rollout/buffer/trajectory.py",
        "decided = unpack(_at(state, jnp.where(waits, state.open_at, last[:, None])), state.layout)",
        "decided = newest",
    ),
    Mutation(
        "A3",
        "rollout/booking/row_arrays.py",
        "here.reward[old] = pairs(rewards)\n",
        "here.reward[old] = pairs(2 * rewards)\n",
    ),
    Mutation(
        "A4",
        "rollout/booking/slots.py",
        "for row in self._arrays.close().tolist():",
        "for row in self._arrays.close().tolist()[:0]:",
    ),
    Mutation("A5", "rollout/booking/slots.py", "return NO_EPISODES._replace(undecided=unknown)", "return NO_EPISODES"),
    Mutation(
        "A10",
        "rollout/booking/slots.py",
        "return records._replace(undecided=records.undecided + unknown)",
        "return records._replace(undecided=records.undecided + unknown, lengths=records.lengths + [0] * len(unknown))",
    ),
    Mutation(
        "A6",
        "rollout/buffer/trajectory.py",
        "jnp.where(arrived, NO_DECISION, state.open_at),",
        "jnp.full_like(state.open_at, NO_DECISION),",
    ),
    Mutation(
        "A6", "rollout/booking/overdue.py", "MORE_ROWS, MORE_BYTES = 128, 384,", "MORE_ROWS, MORE_BYTES = 128, 128,"
    ),
    Mutation(
        "A7",
        "rollout/booking/row_arrays.py",
        "np.where(final, np.where(interrupted, Ending.TRUNCATED, Ending.CUT), Ending.LEFT)",
        "np.where(final, np.where(interrupted, Ending.TERMINATED, Ending.CUT), Ending.LEFT)",
    ),
    Mutation(
        "A8",
        "rollout/buffer/trajectory.py",
        "cut = continues & (age >= time_horizon)",
        "cut = continues & (age > time_horizon)",
    ),
    Mutation(
        "A9",
        "rollout/booking/row_arrays.py",
        "            table[own] = last\n",
        "            table[own] = self._kinds[kind].newest[0][own]\n",
    ),
    Mutation(
        "A10",
        "rollout/booking/episodes.py",
        "        lengths[slots] += 1\n",
        "        lengths[slots] += 2\n",
    ),
    Mutation(
        "A11",
        "rollout/booking/episodes.py",
        "self.sums, self.lengths = fit(self.sums, rows, members), ",
        "self.sums, self.lengths = np.zeros_like(fit(self.sums, rows, members)), ",
    ),
    Mutation(
        "A13",
        "rollout/booking/slots.py",
        "again = np.array([agent in homes for agent in ids], bool)",
        "again = np.ones(len(ids), bool)",
    ),
    Mutation(
        "A14",
        "connectors/previous_action.py",
        "actions.one_hot(action, spec.action)",
        "actions.one_hot(sent, spec.action)",
    ),
    Mutation("A15", "rollout/buffer/trajectory.py", "own = where(begins(steps), jnp.zeros_like(x), x)", "own = x"),
    Mutation(
        "A16",
        "rollout/booking/row_arrays.py",
        "self._present[1] = self.alive & acts[:, None]",
        "self._present[1] = self._deciding",
    ),
    Mutation(
        "A17",
        "rollout/booking/slots.py",
        "if home is not None and home.group != groups[i] and agent not in ended",
        "if home is None and agent not in ended",
    ),
    Mutation(
        "A19",
        "rollout/buffer/trajectory.py",
        "told = jnp.where(steps.ending == Ending.DROPPED, Ending.OPEN, steps.ending)",
        "told = steps.ending",
    ),
    Mutation("A20", "rollout/following/segments.py", "len(stream.rewards) >= horizon", "len(stream.rewards) > horizon"),
    Mutation(
        "A21",
        "rollout/buffer/trajectory.py",
        "rows, living = _rows(state), alive(state, *beside)",
        "rows, living = _rows(state), alive(state, *beside) & False",
    ),
    Mutation(
        "A25", "artifacts/metrics/statistics.py", "value = {Aggregation.SUM: total,", "value = {Aggregation.SUM: mean,"
    ),
    Mutation(
        "A26",
        "artifacts/metrics/statistics.py",
        "is not Aggregation.MOST_RECENT or worker == 0",
        "is not Aggregation.MOST_RECENT or worker >= 0",
    ),
    Mutation(
        "A29",
        "training/host/recorder.py",
        "for behavior_id in (*result.new_specs, *result.steps)",
        "for behavior_id in result.steps",
    ),
    # Environment runner
    Mutation("R2", "rollout/buffer/running.py", "over = arrived.any(-1) & ~goes_on", "over = arrived.any(-1)"),
    Mutation("R3", "training/host/loop.py", "collector.env_steps += stepped", "collector.env_steps += 2 * stepped"),
    Mutation("R10", "rollout/booking/slots.py", "dropped = self._end_discarded()", "dropped = []"),
    Mutation(
        "R20",
        "training/host/open_episodes.py",
        "        for episode, agent in noticed.newcomers:\n            if not agent.mapped:\n                self._map",
        "        for episode, agent in self.tracker.living():\n            if agent:\n                self._map",
    ),
    Mutation(
        "R40",
        "training/host/routing.py",
        "actions, over[name] = policies[name].act(share.messages, share.untrained)",
        "actions = {}\n        for source in share.messages:\n            found, over[name] = policies[name].act("
        "{source: share.messages[source]}, share.untrained)\n            actions |= found",
    ),
    Mutation(
        "R41",
        "training/host/open_episodes.py",
        "agent.policy, agent.samples = agent.behavior, True\n                self._map(episode, agent)",
        "agent.policy, agent.samples = agent.behavior, True",
    ),
    Mutation(
        "R44",
        "rollout/buffer/external_actions.py",
        "pack(cells._replace(action=raw, extras=extras), state.layout)",
        "pack(cells._replace(action=raw), state.layout)",
    ),
    Mutation(
        "R45",
        "rollout/buffer/external_actions.py",
        "open_at = jnp.where(members, NO_DECISION, state.open_at)",
        "open_at = state.open_at",
    ),
    Mutation(
        "R51",
        "rollout/buffer/running.py",
        "self.complete += int(self._finished[over].sum())",
        "self.complete += int(self._finished.sum())",
    ),
    Mutation("R54", "training/host/loop.py", "        self.notices.messages(results)\n", ""),
    Mutation("R59", "training/host/loop.py", "            self.notices.collected(behavior)\n", "            pass\n"),
    Mutation(
        "R56",
        "training/host/learner.py",
        "Held(actor.env_steps, actor.fresh)",
        "Held(actor.env_steps, actor.held)",
    ),
    Mutation(
        "X3",
        "training/host/loop.py",
        "        if over:  # before their samples are learned from (M18)\n            self.recorder.followed(over)\n",
        "",
    ),
    Mutation("X8", "rollout/following/tracker.py", "        record.group_return += group\n", ""),
    Mutation(
        "X11",
        "rollout/following/tracker.py",
        "episode.over, episode.truncated, episode.error = True, True, error",
        "episode.over, episode.truncated = True, True",
    ),
    Mutation(
        "X13",
        "training/host/open_episodes.py",
        'self.hooks.call("on_episode_created", episode)',
        'self.hooks.call("on_episode_start", episode)',
    ),
    Mutation(
        "X18",
        "rollout/following/followed.py",
        'f"{seed} {begun_at} {worker} {incarnation} {number}"',
        'f"{seed} {begun_at} {worker} {number}"',
    ),
    Mutation("X20", "rollout/booking/missing.py", "decided >= most - 1", "decided >= most"),
    # MA-POCA's trainer
    Mutation(
        "P4",
        "rollout/booking/row_arrays.py",
        "follows = np.where(now, gone != Gone.TERMINATED, moved | interrupted)",
        "follows = np.ones_like(now)",
    ),
    Mutation(
        "P6",
        "algorithms/preparing.py",
        "means = (mean_over_trajectories(estimate[..., i], acted, last) for i in range(len(signals)))",
        "means = (losses.masked_mean(estimate[..., i], acted) for i in range(len(signals)))",
    ),
    Mutation(
        "P7",
        "rollout/booking/episodes.py",
        "returns=sums[:, 0].tolist(),",
        "returns=sums[:, 1].tolist(),",
        "every_reward",
    ),
    Mutation("P8", "training/signal_rewards.py", "(mates if cooperative else 0.0)", "mates"),
    Mutation(
        "P9", "rollout/booking/episodes.py", "            if self._teams.is_over(team):\n", "            if True:\n"
    ),
    Mutation("P9", "rollout/booking/team_returns.py", "earned - so_far.total, trust", "0.0, trust"),
    Mutation(
        "P9",
        "rollout/booking/team_returns.py",
        "return self.trust, abs(self.newest), self.decisions",
        "return self.decisions",
    ),
    Mutation("P9", "rollout/booking/team_returns.py", "[*self._late, *self._unsure]", "[*self._late]"),
    Mutation("P10", "algorithms/preparing.py", "paid[name] * signal.strength, posthumous", "paid[name], posthumous"),
    Mutation(
        "P11",
        "learning/returns.py",
        "here = r + g * ((1.0 - m) * next_value + m * following)",
        "here = r + g * (m * next_value + (1.0 - m) * following)",
    ),
    Mutation(
        "P12",
        "algorithms/preparing.py",
        "return losses.normalize_advantages(advantage.mean(-1), rollout.acted)",
        "return losses.normalize_advantages(advantage[..., 0], rollout.acted)",
    ),
    Mutation(
        "P13",
        "training/host/behavior.py",
        "actor.fresh > actor.keeps",
        "actor.fresh > 2 * actor.keeps",
    ),
    Mutation(
        "P15",
        "learning/minibatches.py",
        "word = jnp.where(valid, random >> 1, (random >> 1) | jnp.uint32(1 << 31))",
        "word = random >> 1",
    ),
    Mutation("P16", "learning/minibatches.py", "x if name in largest else x / (count * epochs)", "x"),
    Mutation(
        "P18", "rollout/buffer/trajectory.py", "clock = _turned(state, living, jnp.arange(rows))", "clock = state.clock"
    ),
    Mutation("P26", "algorithms/counterfactual.py", "0.5 * baseline_loss)", "baseline_loss)"),
    Mutation(
        "P14",
        "learning/minibatches.py",
        "chunk = min(max(size // members, 1), rows)",
        "chunk = min(max(size // members, 2), rows)",
    ),
    Mutation(
        "P23",
        "training/host/recorder.py",
        "alone = not behavior.algorithm.team_rows and behavior.name not in self._warned",
        "alone = not behavior.algorithm.team_rows",
    ),
    Mutation(
        "P28",
        "rollout/buffer/trajectory.py",
        "first.earned + other.earned)",
        "first.earned)",
    ),
    Mutation(
        "P28",
        "rollout/buffer/trajectory_state.py",
        "decided |= (other.cells.acted & held).any(-1, keepdims=True)",
        "pass",
    ),
    Mutation(
        "P28",
        "training/compiled/collect.py",
        "for names, critic_step in {**critics, **shared}.items():",
        "for names, critic_step in critics.items():",
    ),
    Mutation(
        "P28",
        "training/host/decide.py",
        "made._replace(action=trajectory.standing(state, message.deciding, made.action))",
        "made",
    ),
    Mutation(
        "P28",
        "algorithms/coma.py",
        "memory = of_all((of_value for of_value, _ in memories)",
        "memory = of_all((of_value for _, of_value in memories)",
    ),
    Mutation("P29", "training/host/team.py", "if len(seen) < len(self._wanted[team]):", "if len(seen) < 0:"),
    Mutation("P27", "training/host/statistics.py", "        self._since_update.clear()\n", ""),
    # Manager of environment processes
    Mutation(
        "S28", "training/host/behavior.py", "behavior.actor.policy = behavior.learner.policy", "behavior.learner.policy"
    ),
    Mutation(
        "S2",
        "envs/workers/supervisor.py",
        "            self.handle.send(command)\n        except (ChannelClosedError, ChannelTimeoutError) as error:\n",
        "            self.handle.send(command)\n        except (ChannelClosedError, ChannelTimeoutError) as error:\n"
        "            return True\n",
        "has_ended",
    ),
    Mutation("S6", "training/host/behaviors.py", "elif known != spec:", "elif known is None:"),
    Mutation("S8", "envs/workers/pool.py", "        self._inbox.drop()\n", ""),
    Mutation(
        "S9",
        "envs/workers/pool.py",
        "                worker.tell(parameters_message(told))\n",
        "                pass\n",
    ),
    Mutation("S11", "envs/workers/worker.py", 'trace = "".join(traceback.format_exception(error))', 'trace = ""'),
    Mutation(
        "S16", "envs/workers/pool.py", "self._gather(still_owing=possible - min_ready)", "self._gather(still_owing=0)"
    ),
    Mutation(
        "S23", "envs/workers/restarts.py", "if 0 <= rate <= len(self._recent):", "if 0 <= rate < len(self._recent):"
    ),
    Mutation(
        "S23", "envs/workers/restarts.py", "while self._recent and now - self._recent[0] >= period:", "while False:"
    ),
    Mutation(
        "S29",
        "envs/workers/worker.py",
        "    log_as_worker(worker, level)\n",
        "    log_as_worker(worker, logging.ERROR)\n",
    ),
    Mutation(
        "S31",
        "training/host/loop.py",
        "{name: actions[result.worker][name] for name in result.steps}",
        "{name: actions[self.pool.num_envs - 1 - result.worker][name] for name in result.steps}",
    ),
    # Demonstration files
    Mutation(
        "P30",
        "demonstrations/reading.py",
        "actions = [x[1:] if late else x[:-1] for x in (numbers, choices)]",
        "actions = [x[:-1] for x in (numbers, choices)]",
        "unity_recordings",
    ),
    Mutation(
        "P30",
        "demonstrations/reading.py",
        "piece[-1][-1] = agent != previous",
        "piece[-1][-1] = False",
        "unity_recordings",
    ),
    Mutation(
        "P30",
        "demonstrations/reading.py",
        "demo_actions == AS_RECORDED or (agents == agents[0]).all()",
        "True",
        "unity_recordings",
    ),
    Mutation(
        "P30",
        "demonstrations/episodes.py",
        "x[1:] if late else x[:-1] for x in (numbers, choices)",
        "x[:-1] for x in (numbers, choices)",
        "unity_recordings",
    ),
    Mutation("P30", "demonstrations/episodes.py", "agent += not over", "agent += 0", "unity_recordings"),
    Mutation("P30", "demonstrations/records.py", "recorder = Recorder.JAXRL", "pass", "unity_recordings"),
    Mutation(
        "P30", "demonstrations/records.py", "pairs.pop()  # an action that is nowhere", "pass", "unity_recordings"
    ),
    Mutation(
        "P30",
        "demonstrations/records.py",
        "len(data) - at == len(header) and data[at:] == header",
        "False",
        "unity_recordings",
    ),
    Mutation("P30", "demonstrations/records.py", "free[-1:] |= final", "free[-1:] |= False", "unity_recordings"),
    Mutation(
        "P30",
        "demonstrations/lags.py",
        "if self.lag_0_adds >= max(_SOME, _ADDS * self.lag_1_adds):",
        "if self.lag_0 >= self.lag_1:",
        "unity_recordings",
    ),
    Mutation("P30", "training/checks.py", "or section.use_actions", "or True", "unity_recordings"),
    Mutation("P31", "learning/returns.py", "jnp.where(gone, next_team, next_return)", "next_return"),
    Mutation("P31", "learning/returns.py", "mean = jnp.where(acted, returns, 0.0)", "mean = returns"),
    Mutation("P31", "learning/returns.py", "return jnp.where(count > 0, mean, value)", "return mean"),
    Mutation(
        "P31",
        "learning/returns.py",
        "jnp.where(wait, next_team, _team_return(here, v, act))",
        "_team_return(here, v, act)",
    ),
    Mutation(
        "P31",
        "algorithms/preparing.py",
        "rollout.terminated | rollout.left if alone else",
        "rollout.terminated if alone else",
    ),
    Mutation(
        "P31",
        "algorithms/preparing.py",
        "rollout.truncated | rollout.cut if along else",
        "rollout.truncated if along else",
    ),
    # Base of trainers
    Mutation(
        "B4",
        "training/host/behavior.py",
        "        self.learner.step += finished\n",
        "        self.learner.step += 2 * finished\n",
    ),
    Mutation(
        "B11",
        "algorithms/updating.py",
        'lambda d: -now["learning_rate"] * d, found',
        "lambda d: -1e-3 * d, found",
    ),
    Mutation("B16", "artifacts/metrics/step_clock.py", "step + new_steps >= following", "step + new_steps > following"),
    Mutation(
        "B18",
        "training/host/updates.py",
        "not behavior.training or not behavior.unfinished() or not behavior.collector.held",
        "not behavior.training or not behavior.collector.held",
    ),
    Mutation(
        "B19",
        "training/host/behavior.py",
        "            behavior.actor.policy = behavior.learner.policy\n",
        "            pass\n",
    ),
    Mutation(
        "B26",
        "training/host/behavior.py",
        "self.learner.state, self.learner.step = state, step",
        "self.learner.state = state",
    ),
    Mutation(
        "B27",
        "training/self_play/league.py",
        "score >= settings.win_share * games",
        "score > settings.win_share * GAMES",
    ),
    Mutation(
        "B27",
        "training/host/league.py",
        "            self._renew(own, main, exploiter, standing.joined)\n",
        "",
    ),
    Mutation(
        "B27",
        "training/host/policies.py",
        "return worker % self._league_size",
        "return (worker + 1) % self._league_size",
    ),
    Mutation(
        "B27",
        "training/self_play/game.py",
        "rating.change(learner, foe.elo, result)",
        "rating.change(learner, foes[0].elo, result)",
        "three_teams",
    ),
    Mutation(
        "B27",
        "training/self_play/game.py",
        "            side.schedule.last_change = step\n",
        "",
        "end_its_turn_together",
    ),
    Mutation(
        "B27",
        "training/self_play/game.py",
        'settings.result == "return"',
        'settings.result == "final_reward"',
        "sign_of_the_last",
    ),
    Mutation(
        "B27",
        "training/self_play/pool.py",
        " and number >= self.saved - self.window",
        "",
        "left_the_pool",
    ),
    Mutation(
        "B27",
        "training/compiled/opponents.py",
        "select(due, x, before)",
        "x",
        "frozen",
    ),
    Mutation(
        "B27",
        "training/compiled/opponents.py",
        "(keys[:, 1], filled, state.met)",
        "(keys[:, 0], filled, state.met)",
        "which_snapshot",
    ),
    Mutation(
        "B27",
        "training/compiled/opponents.py",
        "due, policy, state.rating[:, -1])",
        "due, policy, state.rating[:, 0])",
        "rated_as_the_learner",
    ),
    Mutation(
        "B27",
        "training/compiled/opponents.py",
        "jax.random.split(key, (groups, slots))",
        "jnp.broadcast_to(key, (groups, slots))",
        "act_differently",
    ),
    Mutation(
        "B27",
        "training/compiled/ratings.py",
        "known = (number != LATEST) & (number >= saves - window)",
        "known = number != LATEST",
        "booked",
    ),
)
