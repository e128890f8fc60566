"""A random log, selection and action, and a process of the job, a task or the broker that
dies at a random durable change, twice in some runs, or a store that is full from there on. What is
left is that of a model."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from isotherm.errors import RemoteStorageError
from isotherm.remote.erasure.erased_piece import EraseAction
from isotherm.remote.rewriting.journal import JournalState
from isotherm.remote.rewriting.run_recovery import undo_run
from tests.support.erasure_story import ErasureStory
from tests.support.mortal_store import CutOffError
from tests.support.tiered_partition import TieredPartition

EXAMPLES = 500
SECOND_DEATH_SHARE = 0.3
EXECUTORS_SHARE = 0.5
FULL_SHARE = 0.2
KINDS = ("job", "executor", "broker", "again", "full", "none")


@pytest.mark.slow
@pytest.mark.parametrize(
    "first_seed",
    [
        *range(0, 2 * EXAMPLES, EXAMPLES),
        *(
            pytest.param(seed, marks=pytest.mark.nightly)
            for seed in range(2 * EXAMPLES, 200 * EXAMPLES, EXAMPLES)
        ),
    ],
)
def test_process_that_dies_anywhere_leaves_what_the_model_has(
    tmp_path: Path, first_seed: int
) -> None:
    deaths: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + EXAMPLES):
        try:
            deaths.update(die_somewhere(tmp_path / str(seed), seed))
        except Exception as error:
            error.add_note(f"seed={seed}")
            raise
        shutil.rmtree(tmp_path / str(seed))
        # Scrubbed by the example itself.
        TieredPartition.made.clear()
    # The deaths reach each program, and some runs end without one.
    assert min(deaths[kind] for kind in KINDS) > EXAMPLES // 100, deaths


def die_somewhere(directory: Path, seed: int) -> list[str]:
    """One example. Returns where the process died."""
    rng = random.Random(f"{seed}/deaths")
    action = rng.choice(list(EraseAction))
    story = ErasureStory(directory / "story", seed, action=action, batches_min=2, batches_max=4)
    story.countdown.is_full = rng.random() < FULL_SHARE
    has_executors = rng.random() < EXECUTORS_SHARE
    deaths = []
    story.countdown.left = rng.randrange(4 + 10 * len(story.segments_before))
    for number in range(4):
        is_staged = False
        try:
            if number:
                recover(story)
            if has_matches(story):
                story.stage(f"run{number}", has_executors=has_executors)
            is_staged = True
            story.finish()
            if story.countdown.is_full and story.countdown.is_over:
                # The broker has failed at each of its looks. Now it has room.
                deaths.append("full")
                story.countdown.left = None
                story.finish()
        except RemoteStorageError:
            deaths.append("full")
            story.check_nothing_is_lost()
            story.countdown.left = None
        except CutOffError:
            deaths.append("again" if number else "broker" if is_staged else "job")
            story.restart()
            story.check_nothing_is_lost()
            if number == 0 and rng.random() < SECOND_DEATH_SHARE:
                story.countdown.left = rng.randrange(20)
        else:
            break
    story.check_done()
    story.close()
    deaths += ["executor"] * story.executor_deaths
    return deaths or ["none"]


def recover(story: ErasureStory) -> None:
    """The broker's next looks, then what `--recover --run` does for an unfinished run."""
    story.finish()
    for found in story.journals.find():
        assert found.journal is None or found.journal.state is JournalState.STAGING
        undo_run(story.storage, story.journals, found)


def has_matches(story: ErasureStory) -> bool:
    """Whether the bucket has a record that the erasure would change."""
    remote = story.remote_contents()
    return any(remote[each] != story.after.get(each) for each in story.selected & remote.keys())
