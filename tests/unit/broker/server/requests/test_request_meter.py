"""How the dispatcher applies quotas: throttle times, muted connections, fetches without records."""

from __future__ import annotations

import datetime

import pytest
from kio.schema.delete_topics.v6 import response as delete_topics_v6
from kio.schema.sasl_handshake.v1 import response as sasl_handshake_v1

from isotherm.broker.apis.api_register import APIS
from isotherm.broker.server.requests.quotas import ClientQuotaManager
from isotherm.broker.server.requests.request_meter import RequestMeter
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.fetch import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from isotherm.protocol.framing import RequestHeader
from isotherm.protocol.produce import ProduceResponse
from isotherm.testing.sim_clock import SimClock

QUOTAS = {
    frozenset({("user", "ANONYMOUS")}): {
        "producer_byte_rate": 100.0,
        "consumer_byte_rate": 100.0,
        "request_percentage": 1.0,
    }
}


class Channel:
    def __init__(self):
        self.muted_s = []

    def mute(self, duration_s):
        self.muted_s.append(duration_s)


class Meters:
    """Quotas and a channel, and the meter of a request that takes `took_ms`."""

    def __init__(self):
        self.clock = SimClock()
        self.quotas = ClientQuotaManager(self.clock, window_ms=1000, window_count=11)
        self.quotas.update(QUOTAS)
        self.channel = Channel()

    def throttled(self, api_key, response, *, size=0, took_ms=0):
        header = RequestHeader(api_key, 0, 1, None)
        meter = RequestMeter(self.quotas, APIS[api_key], header, size, self.channel)
        meter.timed(lambda: self.clock.advance(took_ms))
        return meter.throttled(response)


@pytest.fixture
def meters():
    return Meters()


def fetched(size):
    partition = FetchPartitionResponse(0, records=[bytes(size - 1), b"x"])
    return FetchResponse([FetchTopicResponse("t", None, [partition])], session_id=9)


def test_client_within_its_quotas_is_left_alone(meters):
    response = ProduceResponse([])
    assert meters.throttled(ApiKey.PRODUCE, response, size=1000) is response
    assert meters.channel.muted_s == []


def test_produce_over_the_quota_gets_a_throttle_time(meters):
    response = meters.throttled(ApiKey.PRODUCE, ProduceResponse([]), size=2000)
    assert response.throttle_time_ms == 10_000
    assert meters.channel.muted_s == [10.0]


def test_produce_that_wants_no_answer_is_muted_all_the_same(meters):
    assert meters.throttled(ApiKey.PRODUCE, None, size=2000) is None
    assert meters.channel.muted_s == [10.0]


def test_fetch_over_the_quota_gets_no_records_and_is_not_counted(meters):
    response = meters.throttled(ApiKey.FETCH, fetched(2000))
    assert response == FetchResponse((), session_id=9, throttle_time_ms=10_000)
    assert meters.channel.muted_s == [10.0]
    within = fetched(1000)
    assert meters.throttled(ApiKey.FETCH, within) is within


def test_time_is_a_quota_of_every_request(meters):
    answer = delete_topics_v6.DeleteTopicsResponse(throttle_time=datetime.timedelta(), responses=())
    assert meters.throttled(ApiKey.DELETE_TOPICS, answer, took_ms=100) == answer
    late = meters.throttled(ApiKey.DELETE_TOPICS, answer, took_ms=100)
    assert late.throttle_time == datetime.timedelta(seconds=1)
    assert meters.channel.muted_s == [1.0]


def test_response_without_a_throttle_time_is_sent_as_it_is(meters):
    answer = sasl_handshake_v1.SaslHandshakeResponse(error_code=0, mechanisms=())
    assert meters.throttled(17, answer, took_ms=300) is answer
    assert meters.channel.muted_s == [1.0]


def test_fetch_asks_for_no_more_than_its_quota_lets_through(meters):
    """The quota lets through a hundred bytes a second over ten windows. A larger fetch would be
    refused for ever."""
    header = RequestHeader(ApiKey.FETCH, 12, 1, None)
    meter = RequestMeter(meters.quotas, APIS[ApiKey.FETCH], header, 0, meters.channel)
    request = FetchRequest(-1, 500, 5000, 10_000, 0, 0, -1, [], [], "")
    bounded = meter.bounded(request)
    assert (bounded.max_bytes, bounded.min_bytes) == (1000, 1000)
    meters.quotas.update({})
    assert meter.bounded(request) is request
