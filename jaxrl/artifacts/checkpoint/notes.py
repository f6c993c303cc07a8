"""Models of a run's notes in `checkpoint.json` beside a behavior's settings: the file may be anybody's. No JAX.

A number out of its bounds, a name that leads out of the folder or a list that is too short would otherwise fail
in the middle of a run. Keys that are not listed here pass.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0, le=2**53)]
"""Number of steps, decisions or games: no more than a float counts."""
Number = float | Literal["inf", "-inf", "nan"]
"""Float; JSON has no infinity and NaN, which are written as texts."""
SNAPSHOT_NAME = r"[0-9a-f]{64}\.npz"
"""Name of a snapshot's file: the hash of its content."""

_Rating = Annotated[float, Field(ge=-1.2e5, le=1.2e5)]  # whose power of ten is a float
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_File = Annotated[str, Field(pattern=f"^{SNAPSHOT_NAME}$")]
_Bits128 = Annotated[int, Field(ge=0, lt=2**128)]


def _ends_with_a_count(pair: list[Number]) -> list[Number]:
    if not isinstance(pair[1], int) and (isinstance(pair[1], str) or not pair[1].is_integer()):
        raise ValueError("the second number is a count")
    return pair


SumAndCount = Annotated[list[Number], Field(min_length=2, max_length=2), AfterValidator(_ends_with_a_count)]


class LessonNotes(BaseModel):
    """Lesson of one environment parameter, see `jaxrl.training.lessons`."""

    lesson_num: Count | None = None
    smoothed: Number = 0.0
    since_look: SumAndCount = [0.0, 0]


class EpisodeNotes(BaseModel):
    """The newest returns of one behavior, by which lessons are judged."""

    returns: list[Number]
    team_returns: list[Number]
    elo: Number = 0.0


class _Lessons(BaseModel):
    parameters: dict[str, LessonNotes] = {}
    behaviors: dict[str, EpisodeNotes] = {}


class _Snapshot(BaseModel):
    step: Count
    weights: _File


class _Playing(BaseModel):
    weights: _File | None  # None: the learner's
    decisions: Count


class _Rotation(BaseModel):
    learning: int
    queue: list[int]


class _Standing(BaseModel):
    model_config = ConfigDict(extra="forbid")

    elo: _Rating
    games: _Finite
    score: _Finite
    begun: Count
    joined: Count
    ghost_step: Count
    swapped: Count


class _Exploiter(BaseModel):
    standing: _Standing
    playing: dict[str, _Playing]


class _Words(BaseModel):
    state: _Bits128
    inc: _Bits128


class _Generator(BaseModel):
    """State of NumPy's default generator."""

    bit_generator: Literal["PCG64"]
    state: _Words
    has_uint32: Annotated[int, Field(ge=0, le=1)]
    uinteger: Annotated[int, Field(ge=0, lt=2**32)]


class _SelfPlay(BaseModel):
    """Self-play state of a behavior, see `Game.state` and `Opponents.amend`."""

    turns: Count
    rotation: _Rotation
    teams: list[int]
    learning: int
    ghost_step: Count
    last: Annotated[list[Count], Field(min_length=3, max_length=3)]
    saved: Count
    opponents: list[Annotated[list[int], Field(min_length=2, max_length=2)]]
    ratings: Annotated[list[_Rating], Field(min_length=2)]
    met: list[Annotated[list[_Finite], Field(min_length=2, max_length=2)]] = []
    snapshots: Annotated[list[_Snapshot], Field(min_length=1)]
    playing: dict[str, _Playing]
    random: _Generator
    league: list[_Exploiter] = []

    @model_validator(mode="after")
    def _sizes_agree(self) -> _SelfPlay:
        window, count = len(self.ratings) - 1, len(self.snapshots)
        numbers = [number for _, number in self.opponents]
        known = all(-1 <= number < self.saved for number in numbers)
        if not (count <= window and len(self.met) <= window and count <= self.saved and known):
            raise ValueError(
                f"{count} snapshots, {len(self.met)} results, {self.saved} saved and opponents {numbers} do not belong "
                f"to a window of {window}"
            )
        return self


class _LeagueSize(BaseModel):
    exploiters: Count = 0


class _PoolSize(BaseModel):
    """Settings of `self_play` that sizes of arrays follow from."""

    window: Count
    opponent_sampling: str = "uniform"
    league: _LeagueSize | None = None


class Notes(BaseModel):
    """Keys of `loop.NOTED`, and settings that are looked up before all settings are checked."""

    self_play: _PoolSize | None = None
    seeds: Annotated[int, Field(ge=1)] = 1
    num_areas: Count = 1
    first_seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    lessons: list[_Lessons] = []
    moment: dict[str, Annotated[list[Count], Field(min_length=2, max_length=2)]] = {}
    self_play_state: _SelfPlay | None = None

    @model_validator(mode="after")
    def _lessons_of_every_seed(self) -> Notes:
        if self.lessons and len(self.lessons) != self.seeds:
            raise ValueError(f"lessons of {len(self.lessons)} seeds, expected {self.seeds}")
        return self
