"""The topics that the patterns of consumer groups' members select (KIP-848).

A member gets the topics that its pattern matches and its principal may DESCRIBE. So each member's
selection is its own, also in a group whose members have one pattern. Kafka resolves a pattern once
for a group, with the rights of the member that made it do so.

Cost: a pattern is matched once for each set of topics' names, for all groups and members, on a
thread of its own. What a principal may describe is decided once for each change of the pattern's
topics or of the ACLs, a part in each turn of the event loop.

Source: Kafka TopicRegexResolver, GroupMetadataManager.maybeUpdateRegularExpressions.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from isotherm.broker.loop_turns import AnswerTurns
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.principal import Principal
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.shared_futures import shared_result
from isotherm.patterns import matching_names
from isotherm.protocol.framing import RequestHeader

if TYPE_CHECKING:
    from isotherm.broker.metadata.access.authorizer import Authorizer

# Names, in all kept results together: some 60 bytes each. And results, each with its pattern.
KEPT_NAMES_MAX = 1_000_000
KEPT_RESULTS_MAX = 1_000
# One, so that costly patterns take the time of one core at most. A member that is in a group
# already does not wait for it.
MATCHING_THREADS = 1

_NO_ACLS = 0


class Viewer(NamedTuple):
    """Who sends a member's heartbeats, as the authorizer asks for it."""

    principal: Principal
    client_address: str
    header: RequestHeader


class Version(NamedTuple):
    """`names` changes with the set of all topics' names, `acls` with the ACLs."""

    names: int
    acls: int


class Selection(NamedTuple):
    """The topics of one member's pattern. `viewer` and `version` are None if the names are those of
    the target assignment, because this broker has not had a heartbeat of the member yet."""

    pattern: str
    names: frozenset[str]
    viewer: Viewer | None = None
    version: Version | None = None


Selections: TypeAlias = Mapping[str, Selection]

NO_SELECTIONS: Selections = {}


class _Result(NamedTuple):
    names: frozenset[str]
    version: Version


class TopicSelector:
    """Event loop thread only. Must be closed."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._executor = ThreadPoolExecutor(
            MATCHING_THREADS, thread_name_prefix="isotherm-patterns"
        )
        self._topics: Mapping[str, object] = {}
        self._names: tuple[str, ...] = ()
        self._names_version = 0
        # By pattern for all topics, by pattern, principal and address for those that these may
        # describe. The one that was used last is at the end.
        self._results: OrderedDict[Hashable, _Result] = OrderedDict()
        self._names_count = 0
        self._running: dict[str, asyncio.Future[frozenset[str]]] = {}

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def select(
        self,
        member_id: str,
        pattern: str,
        viewer: Viewer,
        selections: Selections,
        authorizer: Authorizer | None,
    ) -> Selections:
        """The selections that differ from `selections`, those of the member's group: its own, and
        others that are at hand, so that the group changes once for all of them.

        A member without a selection for `pattern` waits for it; any other keeps the one it has, and
        a newer one is at hand at a later heartbeat. Raises InvalidRegularExpressionError.
        """
        version = self._version(authorizer)
        own = selections.get(member_id)
        is_own = own is not None and own.viewer is not None and _is_of(own, pattern, viewer)
        if is_own and all(
            selection.version in (version, None) for selection in selections.values()
        ):
            return NO_SELECTIONS
        if not self._start(pattern) and not is_own:
            await shared_result(self._running[pattern])
        patterns = {
            other_id: (selection.pattern, selection.viewer)
            for other_id, selection in selections.items()
            if selection.viewer is not None and selection.version != version
        }
        if not is_own:
            patterns[member_id] = (pattern, viewer)
        selected: dict[str, Selection] = {}
        for other_id, (text, seer) in patterns.items():
            result = await self._visible(text, seer, authorizer)
            # What lags behind is for this member alone, whose rights may have changed.
            if result is not None and (result.version == version or other_id == member_id):
                selected[other_id] = Selection(text, result.names, seer, result.version)
        return selected

    def _version(self, authorizer: Authorizer | None) -> Version:
        topics = self._metadata.image.topics_by_name
        if topics is not self._topics:
            # Most changes of topics are not of their names.
            if topics.keys() != self._topics.keys():
                self._names = tuple(topics)
                self._names_version += 1
            self._topics = topics
        return Version(self._names_version, authorizer.acl_version if authorizer else _NO_ACLS)

    def _start(self, pattern: str) -> bool:
        """Have the pattern matched with the topics' current names. True if it has been."""
        result = self._results.get(pattern)
        if result is not None and result.version.names == self._names_version:
            return True
        if pattern not in self._running:
            names_version = self._names_version
            future = asyncio.get_running_loop().run_in_executor(
                self._executor, matching_names, pattern, self._names
            )
            self._running[pattern] = future

            def keep(future: asyncio.Future[frozenset[str]]) -> None:
                del self._running[pattern]
                # Reading the error here keeps asyncio from logging one for which nobody waits.
                if not future.cancelled() and future.exception() is None:
                    self._keep(pattern, _Result(future.result(), Version(names_version, _NO_ACLS)))

            future.add_done_callback(keep)
        return False

    async def _visible(
        self, pattern: str, viewer: Viewer | None, authorizer: Authorizer | None
    ) -> _Result | None:
        """What the viewer may describe of the pattern's topics.

        None if the pattern is not matched yet.
        """
        matched = self._results.get(pattern)
        if matched is None or viewer is None:
            return None
        self._results.move_to_end(pattern)
        if authorizer is None:
            return matched
        key = (pattern, viewer.principal, viewer.client_address)
        version = Version(matched.version.names, authorizer.acl_version)
        visible = self._results.get(key)
        if visible is None or visible.version != version:
            names = await _describable(authorizer, viewer, matched.names)
            visible = _Result(names, version)
            self._keep(key, visible)
        return visible

    def _keep(self, key: Hashable, result: _Result) -> None:
        before = self._results.pop(key, None)
        if before is not None:
            self._names_count -= len(before.names)
        self._results[key] = result
        self._names_count += len(result.names)
        # The newest stays in any case: a member waits for it.
        while len(self._results) > 1 and (
            self._names_count > KEPT_NAMES_MAX or len(self._results) > KEPT_RESULTS_MAX
        ):
            _, oldest = self._results.popitem(last=False)
            self._names_count -= len(oldest.names)


def _is_of(selection: Selection, pattern: str, viewer: Viewer) -> bool:
    seer = selection.viewer
    return (
        selection.pattern == pattern
        and seer is not None
        and seer.principal == viewer.principal
        and seer.client_address == viewer.client_address
    )


async def _describable(
    authorizer: Authorizer, viewer: Viewer, names: frozenset[str]
) -> frozenset[str]:
    turns = AnswerTurns()
    shown: set[str] = set()
    for part in turns.parts(tuple(names)):
        await turns.take(len(part))
        shown |= authorizer.allowed(
            viewer, Operation.DESCRIBE, ResourceType.TOPIC, part, is_logged=False
        )
    # The same object where all are shown, which is nearly always: members share it.
    return names if len(shown) == len(names) else frozenset(shown)
