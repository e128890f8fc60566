"""How many mutants of a module its own tests kill, by a sample: `make mutants`.

    python scripts/mutants.py --per-module 10 --seed 1 [path ...]

A mutant is one small change that cosmic-ray makes to a module (`>` to `>=`, a number one higher, a
`not` left out). It is run against the tests that mirror the module, in a copy of the sources; the
first failure kills it. What survives is printed as a diff: either a test is missing, or the change
makes no difference, which is for a reader to say. A whole run would take days: the sample is drawn
by a seed, and another seed looks elsewhere.
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parent.parent
SOURCES = "src/isotherm"
TIMEOUT_S = 240

# Module -> what is run against its mutants. Those that decide and destroy come first.
TESTS: dict[str, str] = {
    "remote/tasks/copy.py": "tests/unit/remote/tasks tests/unit/remote/test_tier_metrics.py",
    "remote/tasks/copy_plan.py": "tests/unit/remote/tasks/test_copy_plan.py tests/unit/remote/tasks/test_copy.py",
    "remote/tasks/expiration.py": "tests/unit/remote/tasks tests/unit/remote/test_tier_metrics.py",
    "remote/tasks/expiration_plan.py": "tests/unit/remote/tasks/test_expiration_plan.py tests/unit/remote/tasks/test_expiration.py",
    "remote/tasks/partition_deletion.py": "tests/unit/remote/tasks",
    "remote/tasks/tier.py": "tests/unit/remote/tasks tests/unit/remote/test_remote_log_manager.py",
    "remote/tasks/local_deletion.py": "tests/unit/remote/tasks",
    "remote/metadata/upkeep/cleanup.py": "tests/unit/remote/metadata/test_cleanup.py",
    "remote/metadata/state/cache.py": "tests/unit/remote/metadata/test_cache.py tests/unit/remote/metadata/test_columnar_fold.py",
    "remote/metadata/state/lifecycle.py": "tests/unit/remote/metadata/test_lifecycle.py",
    "remote/metadata/topic/keyed_writes.py": "tests/unit/remote/metadata/test_keyed_manager.py tests/unit/remote/metadata/test_kip_1266_scenarios.py tests/unit/remote/compaction",
    "remote/metadata/upkeep/migration.py": "tests/property/remote/test_metadata_migration.py tests/unit/remote/metadata/test_migration_survey.py",
    "remote/metadata/topic/event_writer.py": "tests/unit/remote/metadata/test_keyed_manager.py tests/unit/remote/tasks/test_stale_decisions.py",
    "remote/tasks/replacement_target.py": "tests/unit/remote/compaction",
    "remote/compaction/finisher.py": "tests/unit/remote/compaction",
    "remote/compaction/recovery.py": "tests/unit/remote/compaction tests/unit/spark/test_compact_recovery.py",
    "spark/jobs/quarantine.py": "tests/spark/test_sweep_recheck.py tests/spark/test_bucket_pages.py",
    "spark/jobs/recheck.py": "tests/spark/test_sweep_recheck.py",
    "spark/jobs/table.py": "tests/spark/test_table.py",
    "spark/jobs/table_retention.py": "tests/unit/spark/test_table_retention.py tests/spark/test_table_retention.py",
    "spark/tables/iceberg_snapshots.py": "tests/unit/spark/test_topic_tables.py tests/unit/spark/test_table_upkeep.py",
    "spark/tables/iceberg_upkeep.py": "tests/unit/spark/test_table_upkeep.py",
    "log/partition_log.py": "tests/unit/log/test_partition_log.py tests/unit/log/test_follower_append.py tests/unit/remote/tasks",
    "log/log_manager.py": "tests/unit/log/test_log_manager.py tests/unit/log/test_log_copy.py",
    "broker/replication/replica_fetcher.py": "tests/unit/broker/replication/test_replica_fetcher.py",
    "broker/replication/tier_follower.py": "tests/unit/broker/replication/test_tier_follower.py",
    "broker/replication/replica_roles.py": "tests/unit/broker/replication/test_replica_roles.py",
    "broker/partitions/log_dir_moves.py": "tests/unit/broker/test_log_dir_moves.py tests/unit/broker/apis/test_alter_replica_log_dirs.py",
    "log/retention.py": "tests/unit/log/test_retention.py tests/unit/log/test_partition_log.py",
    "log/roll.py": "tests/unit/log/test_roll.py tests/unit/log/test_partition_log.py",
    "log/cleaner/plan.py": "tests/unit/log/cleaner",
    "log/mending.py": "tests/unit/remote/tasks/test_copy.py",
    "remote/plugin.py": "tests/unit/remote/test_plugin.py",
    "remote/storage/checked.py": "tests/unit/remote/test_plugin.py",
    "remote/metadata/checked.py": "tests/unit/remote/test_plugin.py",
    "remote/indexes/index_cache.py": "tests/unit/remote/test_index_cache.py",
    "remote/history/lineage.py": "tests/unit/remote/test_lineage.py tests/unit/remote/tasks",
    "remote/quota.py": "tests/unit/remote/test_quota.py",
    "broker/groups/classic_group.py": "tests/unit/broker/groups",
    "broker/transactions/transaction_coordinator.py": "tests/unit/broker/transactions",
}

# Annotations are never evaluated, so a mutant of `A | B` there is none. The inserter wants names.
LEFT_OUT = ("core/ReplaceBinaryOperator_BitOr_", "core/VariableInserter", "core/VariableReplacer")


def places_of(source: str) -> list[tuple[str, int]]:
    """Every mutant there is: an operator's name, and which of its places in the source."""
    nodes = list(ast_nodes(get_ast(source)))
    return [
        (name, occurrence)
        for name in sorted(operator_names())
        if not name.startswith(LEFT_OUT)
        for occurrence in range(_place_count(name, nodes))
    ]


def _place_count(name: str, nodes: list[Any]) -> int:
    operator = get_operator(name)()
    return sum(1 for node in nodes for _ in operator.mutation_positions(node))


def is_killed(copy: Path, tests: str) -> bool:
    # Compiled code is told from its source by size and second, which two mutants may share.
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
    try:
        done = subprocess.run(  # noqa: S603 - our own tests
            command, cwd=ROOT, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def run_module(copy: Path, module: str, tests: str, sample: int, rng: random.Random) -> bool:
    """Print the module's line and its survivors; whether its tests pass as it is."""
    path = copy / SOURCES / module
    source = path.read_text(encoding="utf-8")
    if is_killed(copy, tests):
        print(f"{module}: its tests fail without a mutant", flush=True)
        return False
    places = places_of(source)
    chosen = rng.sample(places, min(sample, len(places)))
    survivors = []
    for name, occurrence in chosen:
        mutated = mutate_code(source, get_operator(name)(), occurrence)
        path.write_text(mutated, encoding="utf-8")
        if not is_killed(copy, tests):
            survivors.append((name, mutated))
    path.write_text(source, encoding="utf-8")
    killed = len(chosen) - len(survivors)
    print(f"{module}: {killed} of {len(chosen)} killed, {len(places)} in all", flush=True)
    for name, mutated in survivors:
        lines = difflib.unified_diff(source.splitlines(), mutated.splitlines(), n=0, lineterm="")
        print(f"    survived {name}")
        print("\n".join(f"        {line}" for line in list(lines)[2:]), flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a sample of mutants of each module.")
    parser.add_argument("modules", nargs="*", help="paths below src/isotherm; all of the table")
    parser.add_argument("--per-module", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    modules = options.modules or list(TESTS)
    with tempfile.TemporaryDirectory(prefix="isotherm-mutants-") as directory:
        copy = Path(directory)
        shutil.copytree(ROOT / "src", copy / "src")
        are_sound = [
            run_module(
                copy,
                module,
                TESTS[module],
                options.per_module,
                random.Random(f"{options.seed} {module}"),  # noqa: S311 - a sample
            )
            for module in modules
        ]
    return 0 if all(are_sound) else 1


if __name__ == "__main__":
    sys.exit(main())
