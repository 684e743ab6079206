"""ACME's entry in the list of vendors."""

from __future__ import annotations

from typing import Final

from hami_node.config.settings import Settings
from hami_node.ports import Backend, Clock, OpenRecord
from hami_node.vendors.admission import VendorAdmission
from hami_node.vendors.spec import PluginOptions, ServedCards, ServedResource, VendorSpec
from tests.acme.node import AcmeBackend, AcmePublication, AcmeResponder, offered
from tests.acme.protocol import AcmeProtocol, acme_protocol
from tests.acme.settings import ACME_SETTINGS, AcmeSettings


def _backend(settings: Settings, clock: Clock, records: OpenRecord) -> Backend:
    del clock, records
    return AcmeBackend(settings.of(AcmeSettings).acme_cards_file)


def _protocol(settings: AcmeSettings, compat: str) -> AcmeProtocol:
    del compat
    return acme_protocol(settings.acme_resource)


ACME_SPEC: Final = VendorSpec(
    settings=ACME_SETTINGS,
    protocol=_protocol,
    admission=lambda settings, compat: VendorAdmission(protocol=_protocol(settings, compat)),
    publication=lambda sources, settings: AcmePublication(sources),
    served=ServedCards(
        make_backend=_backend,
        apply=lambda backend, settings: None,
        resources=lambda settings, cards: (
            ServedResource(
                name=settings.acme_resource,
                offered=offered,
                options=lambda settings: PluginOptions(),
                count_setting="acme.slots",
            ),
        ),
        make_responder=AcmeResponder,
    ),
)
