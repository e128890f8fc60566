"""The registration record of a broker, written once per start."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.features import SUPPORTED_FEATURES
from isotherm.broker.metadata.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    RegisterBrokerRecord,
)
from isotherm.config.broker import BrokerConfig
from isotherm.types import Offset


def registration_record(
    config: BrokerConfig,
    endpoints: Sequence[Endpoint],
    incarnation_id: uuid.UUID,
    *,
    broker_epoch: Offset,
) -> RegisterBrokerRecord:
    """A registration that is unfenced at once, as the broker is its own controller. `broker_epoch`
    is the metadata log's end, as in Kafka."""
    protocols = {broker.name: broker.protocol for broker in config.listener_layout.brokers}
    return RegisterBrokerRecord(
        broker_id=config.node_id,
        incarnation_id=incarnation_id,
        broker_epoch=broker_epoch,
        end_points=tuple(
            BrokerEndpoint(
                name=endpoint.listener_name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=protocols[endpoint.listener_name],
            )
            for endpoint in endpoints
        ),
        features=tuple(
            BrokerFeature(
                name=name, min_supported_version=levels.min, max_supported_version=levels.max
            )
            for name, levels in SUPPORTED_FEATURES.items()
        ),
        rack=config.broker_rack,
        fenced=False,
    )
