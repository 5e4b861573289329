"""Files of TLS and of an API key: what is read from them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from bertender.core.errors import ConfigError
from serve.client.access import ACCESS_RULES, URL_SCHEMES, AccessConfig, open_access, parse_url
from serve.client.protocols import PROTOCOLS
from tests.serve.certificates import KEY, SECRET

USES: Mapping[str, tuple[str, Callable[[Path, Path, Path], dict[str, Path]], str]] = {
    "TLS without TLS": (
        "http://127.0.0.1:8000",
        lambda certificate, key, folder: {"ca_file": certificate},
        "ca_file=.*: http:// has no TLS. Write https://",
    ),
    "a certificate without TLS": (
        "grpc://127.0.0.1:8000",
        lambda certificate, key, folder: {"client_certificate": certificate, "client_key": key},
        "client_certificate=.*, client_key=.*: grpc:// has no TLS. Write grpcs://",
    ),
    "a key in the clear": (
        "http://example.com:8000",
        lambda certificate, key, folder: {"api_key_file": folder / "key"},
        "would send the key to example.com without encryption. Write https://",
    ),
    "a missing authority": (
        "https://localhost",
        lambda certificate, key, folder: {"ca_file": folder / "gone.pem"},
        "ca_file=.*gone.pem: No such file",
    ),
    "an authority that is none": (
        "https://localhost",
        lambda certificate, key, folder: {"ca_file": folder / "key"},
        "ca_file=.*key: .*holds a certificate",
    ),
    "a certificate without its key": (
        "grpcs://localhost",
        lambda certificate, key, folder: {"client_certificate": certificate},
        "client_certificate=.*: .*with its unencrypted key",
    ),
    "a key that is none": (
        "grpcs://localhost",
        lambda certificate, key, folder: {
            "client_certificate": certificate,
            "client_key": folder / "key",
        },
        "client_key=.*key: .*with its unencrypted key",
    ),
    "a missing API key": (
        "https://localhost",
        lambda certificate, key, folder: {"api_key_file": folder / "gone"},
        "api_key_file=.*gone: No such file",
    ),
}


@pytest.mark.parametrize("name", USES)
def test_files_that_cannot_be_used_are_named(
    name: str, tls: tuple[Path, Path], key_file: Path, tmp_path: Path
) -> None:
    url, files, message = USES[name]
    config = AccessConfig.parse(files(*tls, tmp_path))
    with pytest.raises(ConfigError, match=message) as raised:
        open_access(parse_url(url), config)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("content", ["", "two words", f"Bearer {SECRET}", "a\nb", "k\u00e9y", "\0"])
def test_what_is_no_key_is_refused_without_being_shown(content: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(content)
    with pytest.raises(ConfigError, match=r"no key in it\. It holds the key alone") as raised:
        open_access(parse_url("https://x"), AccessConfig(api_key_file=tmp_path / "key"))
    assert not content.strip("\0") or content not in str(raised.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_a_proxy_on_this_machine_needs_no_tls_for_a_key(host: str, key_file: Path) -> None:
    access = open_access(parse_url(f"http://{host}:1"), AccessConfig(api_key_file=key_file))
    assert access.headers == {"authorization": KEY} and SECRET not in repr(access)


@pytest.mark.parametrize("rule", ACCESS_RULES)
def test_settings_that_conflict(rule: str) -> None:
    broken = {"client key without a certificate": {"client_key": "x.key"}}
    with pytest.raises(ConfigError, match=r"client_key=x\.key: .*--client-certificate"):
        AccessConfig.parse(broken[rule])


@pytest.mark.parametrize("name", URL_SCHEMES)
def test_every_scheme_has_a_port(name: str) -> None:
    address = parse_url(f"{name}://example.com")
    assert address.protocol == name.removesuffix("s") and address.protocol in PROTOCOLS
    assert address.tls is name.endswith("s")
    assert address.host_and_port == f"example.com:{URL_SCHEMES[name].default_port}"
