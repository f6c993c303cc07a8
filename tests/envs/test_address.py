"""What `--env` means, and that every kind of environment stands in one registry."""

from __future__ import annotations

import pytest

from jaxrl.envs import SIMULATORS, simulator
from jaxrl.envs.address import PREFIXED, Address, Kind, UnknownEnvironmentError, is_compiled, parse_address
from jaxrl.jax_envs import ADAPTERS, make_environment
from jaxrl.settings import EnvironmentSettings, RunSettings, SettingsError
from jaxrl.tools.watch.film import watch
from jaxrl.training.checks import check_environment_settings
from jaxrl.training.host.launch import make_factory


@pytest.mark.parametrize(
    ("env_path", "kind", "name"),
    [
        (None, Kind.UNITY, None),
        ("Builds/Walker", Kind.UNITY, "Builds/Walker"),
        (r"C:\Builds\Walker.exe", Kind.UNITY, r"C:\Builds\Walker.exe"),
        ("c:Walker.exe", Kind.UNITY, "c:Walker.exe"),
        ("./foo:bar", Kind.UNITY, "./foo:bar"),
        ("/mnt/v2:final/Walker", Kind.UNITY, "/mnt/v2:final/Walker"),
        ("player:dungeon_escape", Kind.PLAYER, "dungeon_escape"),
        ("jax:basic", Kind.JAX, "basic"),
        ("jaxmarl:MPE_simple_spread_v3", Kind.JAXMARL, "MPE_simple_spread_v3"),
        ("gymnax:CartPole-v1", Kind.GYMNAX, "CartPole-v1"),
        ("jax:", Kind.JAX, ""),
        ("jax:a:b", Kind.JAX, "a:b"),
        ("my_file.py:make_env", Kind.FUNCTION, "my_file.py:make_env"),
        ("a b/my-file.py:make", Kind.FUNCTION, "a b/my-file.py:make"),
        ("package.module:make_env", Kind.FUNCTION, "package.module:make_env"),
        ("player:my_file.py:make_env", Kind.PLAYER, "my_file.py:make_env"),
        ("pettingzoo:mpe2.simple_spread_v3", Kind.PETTINGZOO, "mpe2.simple_spread_v3"),
        ("Builds/Game.x86_64", Kind.UNITY, "Builds/Game.x86_64"),
        ("my_file.py", Kind.UNITY, "my_file.py"),
    ],
)
def test_an_address_is_a_kind_and_a_name(env_path, kind, name):
    assert parse_address(env_path) == Address(kind=kind, name=name)
    assert is_compiled(env_path) == (kind not in (Kind.UNITY, Kind.PLAYER, Kind.PETTINGZOO))


@pytest.mark.parametrize(
    ("env_path", "words"),
    [
        (
            "foo:bar",
            r"^foo:bar: no kind of environment is called foo, there are gymnasium:, .*\./foo:bar$",
        ),
        ("plyer:basic", r"did you mean player:\?"),
        ("JAX:basic", r"did you mean jax: or "),
        ("unity:Walker", r"no kind of environment is called unity"),
    ],
)
def test_an_unknown_kind_is_an_error_in_all_places_that_read_an_address(env_path, words, tmp_path):
    settings = EnvironmentSettings(env_path=env_path)
    with pytest.raises(UnknownEnvironmentError, match=words):
        parse_address(env_path)
    with pytest.raises(SettingsError, match=words.replace("^", r"env_settings.env_path: ")):
        check_environment_settings(settings)
    with pytest.raises(UnknownEnvironmentError, match=words):
        make_factory(RunSettings(env_settings=settings), "logs")
    with pytest.raises(UnknownEnvironmentError, match=words):
        make_environment(env_path)
    with pytest.raises(UnknownEnvironmentError, match=words):
        watch(env_path, run=None, out=tmp_path / "film.gif")


def test_every_kind_stands_in_one_registry():
    assert set(SIMULATORS) | set(ADAPTERS) == set(Kind)
    assert {kind for kind in Kind if kind.compiled} == set(ADAPTERS)
    assert set(PREFIXED) == set(Kind) - {Kind.UNITY, Kind.FUNCTION}  # these need none
    for kind in SIMULATORS:
        found = simulator(kind)
        assert callable(found.check) and callable(found.make_factory) and isinstance(found.reseeds, bool)
    with pytest.raises(ValueError, match="jax: is no simulator of the host loop, expected one of unity, player"):
        simulator(Kind.JAX)


def test_a_wrong_name_within_a_kind_is_found_before_anything_starts(tmp_path):
    with pytest.raises(SettingsError, match=r"env_settings.env_path: player:bsic: .*did you mean basic"):
        check_environment_settings(EnvironmentSettings(env_path="player:bsic"))
    with pytest.raises(SettingsError, match=r"env_settings.env_path: .*NoGame"):
        check_environment_settings(EnvironmentSettings(env_path=str(tmp_path / "NoGame")))
    check_environment_settings(EnvironmentSettings(env_path="player:basic"))
    check_environment_settings(EnvironmentSettings(env_path=None))


def test_an_environment_that_is_not_compiled_says_what_to_write():
    with pytest.raises(UnknownEnvironmentError, match=r"player:basic: .* compiled it is jax:basic"):
        make_environment("player:basic")
    assert make_environment("basic").name == make_environment("jax:basic").name
