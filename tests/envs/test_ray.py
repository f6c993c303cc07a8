"""Workers on a Ray cluster of two nodes on this machine: same results, a node that is killed, and what goes wrong."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_env import ToyEnv, no_actions

from jaxrl.envs.interface import EnvironmentFailure
from jaxrl.envs.workers.pool import EnvPool
from jaxrl.envs.workers.restarts import Loss, RestartLimits
from jaxrl.types import EnvMessage
from tests.trainer import MARKS, Trainer, arguments, config, differing, final_state, free_ports, train
from tests.training.host.test_exact import EQUAL, diff, stopped
from tests.training.host.test_exact_features import cartpole

ray = pytest.importorskip("ray")
pytestmark = [*MARKS, pytest.mark.filterwarnings("default")]  # Ray's own


class Nodes:
    """A head that runs nothing, and two nodes of two CPUs each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        sizes = {"include_dashboard": False, "object_store_memory": 80_000_000}
        self.client_port = free_ports()
        head = {"num_cpus": 0, "ray_client_server_port": self.client_port, **sizes}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.add_node(num_cpus=2, object_store_memory=80_000_000) for _ in range(2)]
        self.cluster.wait_for_nodes()

    def kill(self, node_id: str) -> None:
        """As a machine that loses its power."""
        node = next(node for node in self.nodes if node.node_id.startswith(node_id))
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.remove(node)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        here = Path(__file__).parent
        patch.setenv("PYTHONPATH", os.pathsep.join([str(here.parents[1]), str(here)]))  # for the nodes' processes
        nodes = Nodes()
        patch.setenv("RAY_ADDRESS", nodes.cluster.address)
        yield nodes
        ray.shutdown()
        nodes.cluster.shutdown()


def places(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The nodes on which workers have started, as the log tells, and forget them."""
    found = re.findall(r"node \S+ \((\w+)\) \(worker \d\)", caplog.text)
    caplog.clear()
    return found


def step_until_lost(pool: EnvPool, results: list[EnvMessage]) -> tuple[list[EnvMessage], list[Loss]]:
    """Steps of everybody until a worker was lost: processes outlive their node's own process by a moment."""
    until = time.monotonic() + 60
    while not (losses := pool.losses()):
        assert time.monotonic() < until
        for result in results:
            pool.send(result.worker, no_actions(result))
        results = pool.recv(2)
    return results, losses


@pytest.mark.slow
def test_no_cluster_at_that_place_is_one_sentence_and_writes_nothing(tmp_path) -> None:
    words = arguments(config(tmp_path), tmp_path / "results")
    trainer = Trainer([*words, "--workers", "ray://127.0.0.1:9"], tmp_path / "out")
    assert trainer.wait(200) == 1
    assert "ray://127.0.0.1:9: no Ray cluster answers there" in trainer.stderr
    assert "Traceback" not in trainer.stderr
    assert not (tmp_path / "results").exists()


def test_s1_u20_same_results_as_in_processes_spread_over_the_nodes(nodes: Nodes, caplog) -> None:
    caplog.set_level("INFO", "jaxrl")
    with EnvPool(ToyEnv, 2, cluster="ray://auto") as there, EnvPool(ToyEnv, 2, inline=True) as here:
        assert len(set(places(caplog))) == 2
        for pool in (there, here):
            pool.reset({"x": 1.0})
        for _ in range(20):
            pairs = list(zip(there.recv(2), here.recv(2), strict=True))
            for one, other in pairs:
                assert one.steps.keys() == other.steps.keys()
                assert one._replace(seconds=0.0, steps={}) == other._replace(seconds=0.0, steps={})
                for name, steps in one.steps.items():
                    assert steps.deciding.agent_id.tolist() == other.steps[name].deciding.agent_id.tolist()
                    assert steps.deciding.reward.tolist() == other.steps[name].deciding.reward.tolist()
                there.send(one.worker, no_actions(one))
                here.send(other.worker, no_actions(other))


def test_a_cluster_without_room_says_so(nodes: Nodes) -> None:
    with pytest.raises(EnvironmentFailure, match=re.escape("has 4 CPUs, 0 of them free, and it needs one")):
        EnvPool(ToyEnv, 5, cluster="ray://auto", startup_timeout=4.0)


@pytest.mark.slow  # Ray's client gives up after 30 s, which a busy machine can need
def test_a_whole_run_on_the_cluster_ends_with_the_parameters_of_one_in_processes(nodes: Nodes, tmp_path, runs) -> None:
    """Through Ray's client, as from a machine that is not part of the cluster."""
    configuration = config(tmp_path)
    assert train(configuration, tmp_path / "here", "--num-envs", "2") == 0
    place = f"ray://127.0.0.1:{nodes.client_port}"
    there = Trainer(
        arguments(configuration, tmp_path / "there", "--num-envs", "2", "--workers", place), tmp_path / "out"
    )
    assert there.wait(200) == 0, there.stderr
    assert "on node" in there.stdout
    assert differing(final_state(tmp_path / "here"), final_state(tmp_path / "there")) == []


@pytest.mark.slow
def test_exact_resume_on_the_cluster(nodes: Nodes, tmp_path, capsys, runs) -> None:
    """Whole, or stopped at its first checkpoint and resumed: what workers of this process give, bit for bit."""
    here = cartpole(tmp_path / "here")
    whole = cartpole(tmp_path / "whole", workers="ray://auto")
    again = stopped(whole, tmp_path / "stopped", 1)
    assert diff(whole, again, capsys)[3] != EQUAL[3]
    cartpole(tmp_path / "stopped", resume=True, workers="ray://auto")
    assert diff(whole, again, capsys) == EQUAL
    assert diff(here, whole, capsys)[1:] == EQUAL[1:]


def test_m17_a_killed_node_costs_its_workers_episodes_and_no_others(nodes: Nodes, caplog) -> None:
    caplog.set_level("INFO", "jaxrl")
    limits = RestartLimits(lifetime=3)
    with EnvPool(ToyEnv, 2, cluster="ray://auto", limits=limits) as pool:
        pool.reset()
        results = pool.recv(2)
        for result in results:
            pool.send(result.worker, no_actions(result))
        results = pool.recv(2)
        first, second = places(caplog)
        nodes.kill(second)
        results, losses = step_until_lost(pool, results)
        (worker,) = {loss.worker for loss in losses}  # perhaps twice: Ray may not know yet that the node is gone
        assert "Ray cluster was lost" in losses[0].why
        assert [result.incarnation for result in results if result.worker != worker] == [0]
        assert results[worker].incarnation == len(losses)
        assert places(caplog)[-1] == first  # both live on the node that is left
