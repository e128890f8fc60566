"""Counts how many of a sample of a module's mutants its own tests kill: `make mutants`.

    python scripts/mutants.py --per-module 10 --seed 1 [path ...]

A mutant is one small change that cosmic-ray makes to a module (`>` to `>=`, a number one higher, a
`not` left out). It is run against the tests that mirror the module, in a copy of the sources; the
first failure kills it (mutant_runs.py). Survivors are printed as diffs: either a test is missing, or the
change makes no difference, which a reader must decide. A seed draws the sample; another seed gives
other mutants.
"""

from __future__ import annotations

import argparse
import compileall
import difflib
import functools
import itertools
import json
import os
import py_compile
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parent.parent
SOURCES = "src/isotherm"
TIMEOUT_S = 240

# Outcomes of mutant_runs.py.
SURVIVED, NO_TEST, IMPORTED = "survived", "no test reaches it", "runs at import"
SAME = "compiles to the same code"

# Module -> the tests that run against its mutants. Modules that decide or delete come first.
TESTS: dict[str, str] = {
    "remote/tasks/copy.py": "tests/unit/remote/tasks tests/unit/remote/test_tier_metrics.py",
    "remote/tasks/copy_plan.py": "tests/unit/remote/tasks",
    "remote/tasks/expiration.py": "tests/unit/remote/tasks tests/unit/remote/test_tier_metrics.py",
    "remote/tasks/expiration_plan.py": "tests/unit/remote/tasks tests/unit/remote/test_lineage.py",
    "remote/tasks/partition_deletion.py": "tests/unit/remote/tasks tests/unit/remote/test_remote_log_manager.py",
    "remote/tasks/tier.py": "tests/unit/remote/tasks tests/unit/remote/test_remote_log_manager.py",
    "remote/tasks/local_deletion.py": "tests/unit/remote/tasks",
    "remote/tasks/backoff.py": "tests/unit/remote/tasks/test_backoff.py",
    "remote/tasks/cancellation.py": "tests/unit/remote/tasks tests/unit/remote/test_followed_partitions.py",
    "remote/tasks/cleanup_target.py": "tests/unit/remote/metadata/test_cleanup.py tests/unit/remote/tasks",
    "remote/tasks/copies_in_progress.py": "tests/unit/remote/tasks/test_copies_in_progress.py",
    "remote/tasks/follow.py": "tests/unit/remote/test_followed_partitions.py",
    "remote/tasks/pending_deletions.py": "tests/unit/remote/tasks/test_pending_deletions.py",
    "remote/tasks/retried_work.py": "tests/unit/remote/tasks/test_retried_work.py",
    "remote/metadata/upkeep/cleanup.py": "tests/unit/remote/metadata/test_cleanup.py tests/unit/remote/metadata/test_kip_1266_scenarios.py",
    "remote/metadata/state/cache.py": "tests/unit/remote/metadata tests/property/remote/test_metadata_cache.py tests/property/remote/test_columnar_fold.py tests/property/remote/test_segment_fold.py",
    "remote/metadata/state/lifecycle.py": "tests/unit/remote/metadata/test_lifecycle.py tests/unit/remote/metadata/test_cache.py",
    "remote/metadata/topic/keyed_writes.py": "tests/unit/remote/metadata tests/unit/remote/compaction tests/unit/remote/tasks/test_stale_decisions.py",
    "remote/metadata/upkeep/migration.py": "tests/property/remote/test_metadata_migration.py tests/unit/remote/metadata/test_migration_survey.py",
    "remote/metadata/topic/event_writer.py": "tests/unit/remote/metadata tests/unit/remote/tasks/test_stale_decisions.py tests/property/remote/test_several_metadata_writers.py",
    "remote/tasks/replacement_target.py": "tests/unit/remote/compaction",
    "remote/compaction/finisher.py": "tests/unit/remote/compaction",
    "remote/compaction/recovery.py": "tests/unit/remote/compaction tests/unit/spark/test_compact_recovery.py",
    "spark/jobs/quarantine.py": "tests/spark/test_sweep_recheck.py tests/spark/test_bucket_pages.py",
    "spark/jobs/recheck.py": "tests/spark/test_sweep_recheck.py",
    "spark/jobs/table.py": "tests/spark/test_table.py",
    "spark/jobs/table_retention.py": "tests/unit/spark/test_table_retention.py tests/spark/test_table_retention.py",
    "spark/tables/iceberg_snapshots.py": "tests/unit/spark/test_topic_tables.py tests/unit/spark/test_table_upkeep.py",
    "spark/tables/iceberg_upkeep.py": "tests/unit/spark/test_table_upkeep.py",
    "log/partition_log.py": "tests/unit/log tests/unit/remote/tasks",
    "log/log_manager.py": "tests/unit/log/test_log_manager.py tests/unit/log/test_log_copy.py",
    "broker/replication/replica_fetcher.py": "tests/unit/broker/replication/test_replica_fetcher.py",
    "broker/replication/tier_follower.py": "tests/unit/broker/replication/test_tier_follower.py",
    "broker/replication/replica_roles.py": "tests/unit/broker/replication/test_replica_roles.py",
    "broker/partitions/log_dir_moves.py": "tests/unit/broker/test_log_dir_moves.py tests/unit/broker/apis/test_alter_replica_log_dirs.py",
    "log/retention.py": "tests/unit/log/test_retention.py tests/unit/log/test_partition_log.py tests/unit/remote/tasks",
    "log/roll.py": "tests/unit/log/test_roll.py tests/unit/log/test_partition_log.py",
    "log/cleaner/plan.py": "tests/unit/log/cleaner",
    "log/mending.py": "tests/unit/remote/tasks/test_copy.py",
    "log/index_file.py": "tests/unit/log/test_index_file.py",
    "log/transaction_index_checkpoint.py": "tests/unit/log/test_transaction_index_checkpoint.py tests/unit/log/test_log_loader.py",
    "segment/leader_epochs.py": "tests/unit/segment/test_leader_epochs.py",
    "segment/offset_index.py": "tests/unit/segment/test_offset_index.py",
    "segment/time_index.py": "tests/unit/segment/test_time_index.py",
    "segment/transaction_index.py": "tests/unit/segment/test_transaction_index.py",
    "remote/plugin.py": "tests/unit/remote/test_plugin.py",
    "remote/storage/checked.py": "tests/unit/remote/test_plugin.py",
    "remote/metadata/checked.py": "tests/unit/remote/test_plugin.py",
    "remote/indexes/index_cache.py": "tests/unit/remote/test_index_cache.py",
    "remote/indexes/index_cache_entry.py": "tests/unit/remote/test_index_cache_entry.py tests/unit/remote/test_index_cache.py",
    "remote/indexes/index_cache_statistics.py": "tests/unit/remote/test_index_cache.py",
    "remote/indexes/rebuilt_transactions.py": "tests/unit/remote/test_rebuilt_transactions.py",
    "remote/history/lineage.py": "tests/unit/remote/test_lineage.py tests/unit/remote/tasks",
    "remote/history/batch_chain.py": "tests/unit/remote/test_batch_chain.py",
    "remote/history/epoch_columns.py": "tests/property/remote/test_epoch_columns.py",
    "remote/history/holes.py": "tests/unit/remote/test_holes.py",
    "remote/history/transaction_data.py": "tests/unit/remote/test_transaction_data.py",
    "remote/reading/checked_batches.py": "tests/unit/remote/test_checked_batches.py",
    "remote/reading/marker_proof.py": "tests/property/remote/test_marker_proof.py tests/unit/remote/test_transaction_data.py tests/unit/remote/test_remote_log_reader.py",
    "remote/reading/range_memory.py": "tests/unit/remote/test_range_memory.py",
    "remote/reading/read_ahead.py": "tests/unit/remote/test_read_ahead.py tests/unit/remote/test_segment_reader.py",
    "remote/reading/read_wait.py": "tests/unit/remote/test_read_wait.py tests/unit/remote/test_segment_range.py",
    "remote/reading/remote_log_reader.py": "tests/unit/remote/test_remote_log_reader.py",
    "remote/reading/remote_offset_lookup.py": "tests/unit/remote/test_remote_offset_lookup.py",
    "remote/reading/segment_blocks.py": "tests/unit/remote/test_segment_blocks.py",
    "remote/reading/segment_range.py": "tests/unit/remote/test_segment_range.py",
    "remote/reading/segment_reader.py": "tests/unit/remote/test_segment_reader.py",
    "remote/metadata/folding/columnar_fold.py": "tests/unit/remote/metadata/test_columnar_fold.py tests/property/remote/test_columnar_fold.py",
    "remote/metadata/folding/decoded_run.py": "tests/unit/remote/metadata/test_decoded_run.py tests/unit/remote/metadata/test_columnar_fold.py tests/property/remote/test_columnar_fold.py",
    "remote/metadata/folding/fold.py": "tests/unit/remote/metadata/test_fold.py tests/unit/remote/metadata/test_fold_of_a_replica.py tests/unit/remote/metadata/test_followed_partition.py tests/unit/remote/metadata/test_columnar_fold.py tests/property/remote/test_columnar_fold.py",
    "remote/metadata/folding/followed_partition.py": "tests/unit/remote/metadata/test_followed_partition.py",
    "remote/metadata/folding/lives.py": "tests/unit/remote/metadata/test_lives.py tests/unit/remote/metadata/test_columnar_fold.py tests/property/remote/test_columnar_fold.py",
    "remote/metadata/folding/segment_fold.py": "tests/property/remote/test_segment_fold.py",
    "remote/metadata/folding/wanted_partitions.py": "tests/unit/remote/metadata/test_followed_partition.py tests/unit/remote/metadata/test_columnar_fold.py tests/property/remote/test_columnar_fold.py",
    "remote/metadata/wire/events.py": "tests/unit/remote/metadata/test_events.py tests/unit/remote/metadata/test_fold.py",
    "remote/metadata/wire/keys.py": "tests/unit/remote/metadata/test_keys.py",
    "remote/metadata/wire/serde.py": "tests/unit/remote/metadata/test_serde.py",
    "remote/quota.py": "tests/unit/remote/test_quota.py",
    "broker/groups/classic_group.py": "tests/unit/broker/groups/test_classic_group.py tests/unit/broker/groups/test_classic_waits.py tests/unit/broker/groups/test_classic_members.py tests/unit/broker/groups/test_records.py tests/property/broker/test_classic_group_histories.py",
    "remote/bounded_pool.py": "tests/unit/remote/test_bounded_pool.py",
    "remote/damage_log.py": "tests/unit/remote/test_damage_log.py",
    "remote/periodic_tasks.py": "tests/unit/remote/tasks/test_periodic_tasks.py",
    "remote/read_failures.py": "tests/unit/remote/test_read_failures.py",
    "remote/remote_log_manager.py": "tests/unit/remote/test_remote_log_manager.py tests/unit/remote/test_followed_partitions.py",
    "remote/remote_tier_metrics.py": "tests/unit/remote/test_tier_metrics.py tests/unit/remote/test_remote_log_manager.py",
    "remote/segment_metadata.py": "tests/unit/remote/test_segment_metadata.py",
    "remote/threads.py": "tests/unit/remote/tasks/test_periodic_tasks.py",
    "broker/transactions/transaction_coordinator.py": "tests/unit/broker/transactions",
    "remote/scrub/index_checks.py": "tests/unit/remote/scrub",
    "remote/scrub/log_batches.py": "tests/unit/remote/scrub",
    "remote/scrub/producer_checks.py": "tests/unit/remote/scrub",
    "remote/scrub/record_checks.py": "tests/unit/remote/scrub",
    "remote/scrub/segment_scrub.py": "tests/unit/remote/scrub",
    "remote/compaction/journal.py": "tests/unit/remote/compaction tests/unit/spark/test_compact_plan.py",
    "remote/compaction/newest_keys.py": "tests/unit/remote/compaction tests/unit/spark/test_compact_plan.py",
    "remote/compaction/pieces.py": "tests/unit/remote/compaction tests/unit/spark/test_compact_plan.py",
    "remote/compaction/rewrite.py": "tests/unit/remote/compaction tests/unit/spark/test_compact_plan.py",
    "remote/compaction/staging.py": "tests/unit/remote/compaction tests/unit/spark/test_compact_plan.py",
    "remote/metadata/topic/kafka_topic.py": "tests/unit/remote/metadata/test_kafka_topic.py tests/unit/remote/metadata/test_kafka_topic_reads.py",
    "remote/metadata/upkeep/migration_views.py": "tests/unit/remote/metadata/test_migration_views.py tests/unit/remote/metadata/test_migration_survey.py",
    "broker/groups/classic_checks.py": "tests/unit/broker/groups/test_classic_group.py tests/unit/broker/groups/test_classic_waits.py tests/unit/broker/groups/test_classic_members.py tests/unit/broker/groups/test_records.py tests/property/broker/test_classic_group_histories.py",
    "broker/groups/classic_members.py": "tests/unit/broker/groups/test_classic_group.py tests/unit/broker/groups/test_classic_waits.py tests/unit/broker/groups/test_classic_members.py tests/unit/broker/groups/test_records.py tests/property/broker/test_classic_group_histories.py",
    "broker/groups/group_snapshot.py": "tests/unit/broker/groups/test_classic_group.py tests/unit/broker/groups/test_classic_waits.py tests/unit/broker/groups/test_classic_members.py tests/unit/broker/groups/test_records.py tests/property/broker/test_classic_group_histories.py",
    "broker/groups/consumer_checks.py": "tests/unit/broker/groups/test_consumer_group.py tests/unit/broker/groups/test_consumer_checks.py tests/unit/broker/groups/test_hosted_members.py tests/unit/broker/groups/test_loading.py tests/property/broker/test_consumer_group_histories.py",
    "broker/groups/consumer_group.py": "tests/unit/broker/groups/test_consumer_group.py tests/unit/broker/groups/test_consumer_checks.py tests/unit/broker/groups/test_hosted_members.py tests/unit/broker/groups/test_loading.py tests/property/broker/test_consumer_group_histories.py",
    "broker/groups/consumer_member.py": "tests/unit/broker/groups/test_consumer_group.py tests/unit/broker/groups/test_consumer_checks.py tests/unit/broker/groups/test_hosted_members.py tests/unit/broker/groups/test_loading.py tests/property/broker/test_consumer_group_histories.py",
    "broker/groups/consumer_records.py": "tests/unit/broker/groups/test_consumer_group.py tests/unit/broker/groups/test_consumer_checks.py tests/unit/broker/groups/test_hosted_members.py tests/unit/broker/groups/test_loading.py tests/property/broker/test_consumer_group_histories.py",
    "broker/groups/consumer_replay.py": "tests/unit/broker/groups/test_consumer_group.py tests/unit/broker/groups/test_consumer_checks.py tests/unit/broker/groups/test_hosted_members.py tests/unit/broker/groups/test_loading.py tests/property/broker/test_consumer_group_histories.py",
    "broker/groups/assignors/range.py": "tests/unit/broker/groups/test_consumer_group.py tests/property/broker/test_assignors.py",
    "broker/groups/assignors/uniform.py": "tests/unit/broker/groups/test_consumer_group.py tests/property/broker/test_assignors.py",
    "broker/groups/embedded_protocol.py": "tests/unit/broker/groups/test_hosted_members.py tests/unit/broker/groups/test_embedded_protocol.py",
    "broker/groups/group_migration.py": "tests/unit/broker/groups/test_hosted_members.py tests/unit/broker/groups/test_embedded_protocol.py",
    "broker/groups/hosted_members.py": "tests/unit/broker/groups/test_hosted_members.py tests/unit/broker/groups/test_embedded_protocol.py",
    "broker/groups/consumer_coordinator.py": "tests/unit/broker/groups",
    "broker/groups/group_coordinator.py": "tests/unit/broker/groups",
    "broker/groups/group_offsets.py": "tests/unit/broker/groups",
    "broker/groups/group_records.py": "tests/unit/broker/groups",
    "broker/groups/group_shard.py": "tests/unit/broker/groups",
    "broker/groups/offset_coordinator.py": "tests/unit/broker/groups",
    "broker/groups/offset_reader.py": "tests/unit/broker/groups",
    "broker/groups/offsets.py": "tests/unit/broker/groups",
    "broker/groups/offsets_topic.py": "tests/unit/broker/groups",
    "broker/groups/shards.py": "tests/unit/broker/groups",
    "broker/groups/stored_offset.py": "tests/unit/broker/groups",
    "broker/groups/topic_catalog.py": "tests/unit/broker/groups",
    "broker/transactions/transaction_log.py": "tests/unit/broker/transactions/test_transaction_log.py",
    "log/epoch_recovery.py": "tests/unit/log/test_log_loader.py tests/unit/log/test_loaded_directory.py tests/unit/log/test_log_manager.py tests/unit/log/test_partition_log.py tests/unit/log/test_recovery.py",
    "log/log_loader.py": "tests/unit/log/test_log_loader.py tests/unit/log/test_loaded_directory.py tests/unit/log/test_log_manager.py tests/unit/log/test_partition_log.py tests/unit/log/test_recovery.py",
    "log/recovery.py": "tests/unit/log/test_log_loader.py tests/unit/log/test_loaded_directory.py tests/unit/log/test_log_manager.py tests/unit/log/test_partition_log.py tests/unit/log/test_recovery.py",
    "log/segment_check.py": "tests/unit/log/test_segment_check.py tests/unit/log/test_log_loader.py tests/unit/log/test_loaded_directory.py tests/unit/log/test_log_manager.py tests/unit/log/test_partition_log.py tests/unit/log/test_recovery.py",
    "log/leader_epoch_cache.py": "tests/unit/log/test_leader_epoch_cache.py tests/unit/log/test_log_loader.py tests/unit/log/test_loaded_directory.py tests/unit/log/test_log_manager.py tests/unit/log/test_partition_log.py",
    "log/producer_replay.py": "tests/property/log tests/unit/log/test_producer_state.py tests/unit/log/test_log_loader.py tests/unit/log/test_loaded_directory.py tests/unit/log/test_log_manager.py tests/unit/log/test_partition_log.py",
    "log/producer_snapshots.py": "tests/unit/log/test_producer_snapshots.py tests/unit/log/test_log_loader.py tests/unit/log/test_loaded_directory.py tests/unit/log/test_log_manager.py tests/unit/log/test_partition_log.py",
    "log/producer_state.py": "tests/unit/log/test_producer_state.py tests/unit/log/test_log_loader.py tests/unit/log/test_loaded_directory.py tests/unit/log/test_log_manager.py tests/unit/log/test_partition_log.py",
    "log/batch_scan.py": "tests/unit/log",
    "log/deletion_queue.py": "tests/unit/log",
    "log/log_segment.py": "tests/unit/log",
    "log/partition_directories.py": "tests/unit/log/test_partition_directories.py tests/unit/log/test_log_manager.py",
    "log/segment_swap.py": "tests/unit/log tests/fault/test_cleaner_crash.py",
    "log/cleaner/choice.py": "tests/unit/log/cleaner",
    "log/cleaner/chunk_reader.py": "tests/unit/log/cleaner",
    "log/cleaner/cleaner.py": "tests/unit/log/cleaner",
    "log/cleaner/cleaner_checkpoints.py": "tests/unit/log/cleaner",
    "log/cleaner/log_cleaner.py": "tests/unit/log/cleaner",
    "log/cleaner/log_cleaner_manager.py": "tests/unit/log/cleaner",
    "log/cleaner/map_build.py": "tests/unit/log/cleaner",
    "log/cleaner/offset_map.py": "tests/unit/log/cleaner",
    "log/cleaner/rewrite.py": "tests/unit/log/cleaner",
    "log/cleaner/segment_writer.py": "tests/unit/log/cleaner",
}

# Annotations are never evaluated, so a mutant of `A | B` there is none. The inserter wants names. No class
# here defines what `==` is for enumerations, the only constants that `is` is used for besides None.
LEFT_OUT = (
    "core/ReplaceBinaryOperator_BitOr_",
    "core/ReplaceComparisonOperator_Is_Eq",
    "core/ReplaceComparisonOperator_IsNot_NotEq",
    "core/VariableInserter",
    "core/VariableReplacer",
)


@dataclass(frozen=True)
class Place:
    """The place of a mutation: an operator's name, and the index among its places in the source."""

    operator: str
    occurrence: int

    def mutated(self, source: str) -> str:
        return _mutated(self.operator, self.occurrence, source)


# Parsing a module again takes much longer than most tests of a mutant.
@functools.cache
def _mutated(operator: str, occurrence: int, source: str) -> str:
    return mutate_code(source, get_operator(operator)(), occurrence)


def places_of(source: str) -> list[Place]:
    nodes = list(ast_nodes(get_ast(source)))
    return [
        Place(name, occurrence)
        for name in sorted(operator_names())
        if not name.startswith(LEFT_OUT)
        for occurrence in range(_place_count(name, nodes))
    ]


def _place_count(name: str, nodes: list[Any]) -> int:
    operator = get_operator(name)()
    return sum(1 for node in nodes for _ in operator.mutation_positions(node))


@dataclass(frozen=True)
class Sample:
    """Mutants of one module."""

    module: str
    source: str
    places: list[Place]
    count: int
    """The number of all places of mutations in the module."""

    @classmethod
    def draw(cls, module: str, size: int, rng: random.Random) -> Sample:
        source = (ROOT / SOURCES / module).read_text(encoding="utf-8")
        places = places_of(source)
        shuffled = iter(rng.sample(places, len(places)))
        sound = (place for place in shuffled if _compiles(place.mutated(source)))
        return cls(module, source, list(itertools.islice(sound, size)), len(places))

    def mutants(self) -> list[str]:
        return [place.mutated(self.source) for place in self.places]


def _compiles(source: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of `is` with a number
        try:
            compile(source, "mutant", "exec", dont_inherit=True)
        except SyntaxError:
            return False
    return True


class Copy:
    """A copy of the sources in which one module at a time is mutated."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        shutil.copytree(ROOT / "src", directory / "src")
        # Python recognizes stale bytecode by the source's size and second, which two mutants may share.
        compileall.compile_dir(
            directory / SOURCES,
            quiet=1,
            force=True,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )

    def outcomes(self, samples: list[Sample], *, at_import: bool) -> list[list[str]]:
        """The outcome of each mutant: SURVIVED, NO_TEST, SAME, or the test that kills it.

        IMPORTED occurs only without `at_import`.
        """
        answers = self._directory / "outcomes.json"
        modules = [
            {
                "name": f"isotherm.{sample.module.removesuffix('.py').replace('/', '.')}",
                "path": str(self._directory / SOURCES / sample.module),
                "tests": TESTS[sample.module].split(),
                "mutants": sample.mutants(),
            }
            for sample in samples
        ]
        job = {"modules": modules, "outcomes": str(answers)}
        (self._directory / "job.json").write_text(json.dumps(job))
        paths = {path for sample in samples for path in TESTS[sample.module].split()}
        nested = {each for each in paths for other in paths if each.startswith(f"{other}/")}
        failed = self._run(sorted(paths - nested), None, "-p", "scripts.mutant_runs")
        answer = json.loads(answers.read_text()) if answers.exists() else {"broken": failed}
        if "broken" in answer:
            raise RuntimeError(answer["broken"])
        outcomes: list[list[str]] = answer["outcomes"]
        for sample, found in zip(samples, outcomes, strict=True):
            for index, outcome in enumerate(found):
                if outcome == IMPORTED and at_import:
                    found[index] = self._outcome_of_import(sample, sample.places[index])
        return outcomes

    def _outcome_of_import(self, sample: Sample, place: Place) -> str:
        path = self._directory / SOURCES / sample.module
        path.write_text(place.mutated(sample.source), encoding="utf-8")
        killed = self._run(TESTS[sample.module].split(), TIMEOUT_S, "-x")
        path.write_text(sample.source, encoding="utf-8")
        return killed or SURVIVED

    def _run(self, tests: list[str], timeout_s: float | None, *options: str) -> str:
        """Run the tests; return the last line of output if they fail, else an empty text."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._directory / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "MUTANTS_JOB": str(self._directory / "job.json"),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._directory / "hypothesis"),
        }
        command = [sys.executable, "-m", "pytest", "-q", *options]
        command += ["-p", "no:cacheprovider", "-p", "no:randomly"]
        command += ["--basetemp", str(self._directory / "tmp"), *tests]
        try:
            done = subprocess.run(  # noqa: S603 - our own tests
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "it does not end"
        if done.returncode == 0:
            return ""
        output = (done.stdout + done.stderr).decode(errors="replace")
        return "\n".join(output.splitlines()[-30:])


def report(sample: Sample, outcomes: list[str]) -> tuple[int, int]:
    """Print a module's line and its survivors; return the numbers of killed and of all mutants."""
    tried = [
        (place, outcome)
        for place, outcome in zip(sample.places, outcomes, strict=True)
        if outcome != IMPORTED
    ]
    survivors = [each for each in tried if each[1] in (SURVIVED, NO_TEST, SAME)]
    killed = len(tried) - len(survivors)
    print(f"{sample.module}: {killed} of {len(tried)} killed, {sample.count} in all")
    for place, outcome in survivors:
        before, after = sample.source.splitlines(), place.mutated(sample.source).splitlines()
        print(f"    {outcome}: {place.operator} {place.occurrence}")
        for line in [*difflib.unified_diff(before, after, n=0, lineterm="")][2:]:
            print(f"        {line}")
    sys.stdout.flush()
    return killed, len(tried)


def _part(sample: Sample) -> str:
    return sample.module.split("/")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a sample of mutants of each module.")
    parser.add_argument("modules", nargs="*", help="beginnings of paths below src/isotherm; all")
    parser.add_argument("--per-module", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--functions-only", action="store_true", help="without what runs at import, a run each"
    )
    options = parser.parse_args()
    samples = [
        Sample.draw(module, options.per_module, random.Random(f"{options.seed} {module}"))  # noqa: S311
        for module in TESTS
        if not options.modules or module.startswith(tuple(options.modules))
    ]
    samples.sort(key=_part)
    killed = tried = 0
    is_sound = True
    # Samples with the same tests run together: they share the slowest step, the look at the lines that tests reach.
    for part, of_part in itertools.groupby(samples, key=_part):
        together = list(of_part)
        with tempfile.TemporaryDirectory(prefix="isotherm-mutants-") as directory:
            copy = Copy(Path(directory))
            try:
                found = copy.outcomes(together, at_import=not options.functions_only)
            except RuntimeError as error:
                print(f"{part}: {error}", flush=True)
                is_sound = False
                continue
        for sample, outcomes in zip(together, found, strict=True):
            counts = report(sample, outcomes)
            killed, tried = killed + counts[0], tried + counts[1]
    print(f"{killed} of {tried} killed")
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
