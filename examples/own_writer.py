"""A writer of statistics of one's own: one JSON document a line, for whatever reads a log.

    jaxrl train basic --env jax:basic --run-id=lines --set "record_settings.writers=own_writer.py:make_writer"

or in the file: `record_settings: {writers: [own_writer.py:make_writer]}`. TensorBoard's event files and metrics.csv are
written as ever. A writer works in a thread of its own: it may wait for a network, and what fails does not end the run.
"""

import json


def make_writer(place):
    """Called for each behavior, and for each seed of it; `place` has run_id, behavior, seed, folder and more."""
    return JsonLines(place)


class JsonLines:
    """`summaries` must be there; `hyperparameters`, `images` and `close` may."""

    def __init__(self, place):
        place.folder.mkdir(parents=True, exist_ok=True)
        self.title = place.title
        # A new run begins a new file; one that is resumed goes on in it.
        self.file = (place.folder / "metrics.jsonl").open("w" if place.resume_step is None else "a", encoding="utf-8")

    def hyperparameters(self, settings, step):
        """Once, at the trainer step that the run starts at."""
        self._line({"run": self.title, "step": step, "trainer_type": settings["trainer_type"]})

    def summaries(self, step, summaries):
        """A `Summary` by tag: value, mean, std, sum, count."""
        self._line({"step": step, **{tag: summary.value for tag, summary in summaries.items()}})

    def close(self):
        """The run is over."""
        self.file.close()

    def _line(self, document):
        self.file.write(json.dumps(document) + "\n")
        self.file.flush()
