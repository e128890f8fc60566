"""Every field of a batch's header is altered under a right CRC, for every kind of batch. A strict
query returns the right rows or an error, unless nothing in the bucket contradicts the alteration.

Without failOnDataLoss there may be fewer rows but no wrong ones, also where offsets may be missing.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from isotherm.errors import IsothermError
from tests.support.altered_batches import ALTERATIONS, DATA, KINDS, Altered, altered
from tests.support.damaged_history import damage
from tests.support.model_history import ModelHistory, Row, Shape, rows

pytestmark = pytest.mark.slow  # as a file: each alteration is read in every mode
MODES = (
    {"failOnDataLoss": "true"},
    {"failOnDataLoss": "false"},
    {"failOnDataLoss": "false", "failOnOffsetGaps": "false"},
)
SHAPE = Shape(idempotent=True)
CASES = [*itertools.product(KINDS, ALTERATIONS)]
# docs/pipeline/planted-damage.md lists these, and the means by which each can still be found.
UNPROVABLE = {
    *((kind, "timestamp-type") for kind in DATA),
    *((kind, "both-times") for kind in DATA),
    ("aborted", "producer-and-transaction-lost"),
    *((kind, "producer-of-another-transaction") for kind in ("aborted", "committed")),
}
SOAK_SEEDS = range(40, 46)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> ModelHistory:
    return ModelHistory(tmp_path_factory.mktemp("history"), 1, SHAPE)


def wrong_answers(history: ModelHistory, each: Altered) -> list[str]:
    wrong = []
    with damage(each.changes):
        for (isolation, known), mode in itertools.product(history.by_isolation().items(), MODES):
            try:
                found = rows(history.folder, {"isolationLevel": isolation, **mode})
            except IsothermError:
                continue
            is_right = found == known if mode is MODES[0] else _is_part(found, known)
            if not is_right:
                counts = f"rows={len(found)} expected={len(known)}"
                wrong.append(f"{each.segment=} {each.batch=} {isolation} {mode} {counts}")
    return wrong


def _is_part(found: list[Row], known: list[Row]) -> bool:
    return set(found) <= set(known) and len(set(found)) == len(found)


def test_sound_history_is_read_whole(history: ModelHistory) -> None:
    for isolation, known in history.by_isolation().items():
        assert rows(history.folder, {"isolationLevel": isolation}) == known


@pytest.mark.parametrize("kind", KINDS)
def test_altered_batch_changes_no_row_in_silence(history: ModelHistory, kind: str) -> None:
    tried = 0
    for name in ALTERATIONS:
        found = [*altered(history, kind, name)]
        if found and (kind, name) not in UNPROVABLE:
            each = random.Random(f"{kind} {name}").choice(found)
            assert not wrong_answers(history, each), (kind, name)
            tried += 1
    assert tried > len(ALTERATIONS) // 2


@pytest.mark.parametrize(("kind", "name"), sorted(UNPROVABLE))
def test_what_is_said_to_be_without_evidence_gives_other_rows(
    history: ModelHistory, kind: str, name: str
) -> None:
    """If one of them were found, the page would have to list it as found."""
    assert any(wrong_answers(history, each) for each in altered(history, kind, name))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_no_altered_batch_of_any_history_changes_rows_in_silence(tmp_path: Path, seed: int) -> None:
    history = ModelHistory(tmp_path, seed, SHAPE)
    for kind, name in CASES:
        if (kind, name) not in UNPROVABLE:
            for each in altered(history, kind, name):
                assert not wrong_answers(history, each), (kind, name)


@pytest.mark.parametrize("kind", DATA)
def test_batch_that_an_index_leads_to_may_be_moved(history: ModelHistory, kind: str) -> None:
    """A base offset one too high, which no CRC covers. If a read begins at the batch, behind the
    gap, it looks sound."""
    for each in altered(history, kind, "base-offset-higher"):
        assert not wrong_answers(history, each)
