"""Taken ports are named before a server starts; 0 means any free one."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from bertender.core.errors import ConfigError, PortTakenError, ServingError
from serve.config import PORT_FIELDS, ServeConfig
from serve.server.addresses import with_free_ports, with_ports
from tests.served import ANY_PORTS


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize("field", PORT_FIELDS)
def test_a_taken_port_is_named_with_the_option(field: str, taken_port: int) -> None:
    option = "--" + field.replace("_", "-")
    with pytest.raises(PortTakenError, match=f"port {taken_port} .*{option}"):
        with_free_ports(ServeConfig(**{**ANY_PORTS, field: taken_port}))


def test_zeros_become_different_free_ports() -> None:
    config = with_free_ports(ServeConfig(**ANY_PORTS))
    ports = {getattr(config, field) for field in PORT_FIELDS}
    assert len(ports) == 3 and 0 not in ports


def test_a_port_that_was_just_used_is_free(taken_port: int) -> None:
    with socket.create_connection(("127.0.0.1", taken_port)):
        pass
    config = with_free_ports(ServeConfig(**ANY_PORTS))
    assert with_free_ports(config) == config


def test_equal_ports_are_refused() -> None:
    with pytest.raises(ConfigError, match="http_port=8000, grpc_port=8000"):
        with_free_ports(ServeConfig(grpc_port=8000))
    with pytest.raises(ConfigError, match="the ports must differ"):
        ServeConfig.parse({"metrics_port": 8000})


def test_by_default_there_is_no_port_for_grpc() -> None:
    config = with_free_ports(ServeConfig(http_port=0, metrics_port=0))
    assert config.grpc_port is None and config.http_port and config.metrics_port


@pytest.mark.parametrize("host", ["198.51.100.7", "no.such.host.invalid"])
def test_a_foreign_host_is_refused(host: str) -> None:
    with pytest.raises(ServingError, match=f"cannot listen on host '{host}'"):
        with_free_ports(ServeConfig(host=host, **ANY_PORTS))


def test_a_name_becomes_its_address() -> None:
    assert with_free_ports(ServeConfig(host="localhost", **ANY_PORTS)).host == "127.0.0.1"


def test_metrics_have_the_host_or_their_own() -> None:
    for settings, host in (({}, "127.0.0.2"), ({"metrics_host": "localhost"}, "127.0.0.1")):
        config, sockets = with_ports(ServeConfig(host="127.0.0.2", **settings, **ANY_PORTS))
        hosts = {name: each.getsockname()[0] for name, each in sockets.items()}
        for each in sockets.values():
            each.close()
        assert hosts == {**dict.fromkeys(PORT_FIELDS, "127.0.0.2"), "metrics_port": host}
        assert (config.host, config.metrics_host) == ("127.0.0.2", host)


def test_what_is_no_name_of_a_host_is_refused() -> None:
    with pytest.raises(ServingError, match=r"cannot listen on host 'a\.\.b': .*label"):
        with_free_ports(ServeConfig(host="a..b", **ANY_PORTS))
