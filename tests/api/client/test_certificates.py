"""What a client checks a service's certificate with."""

import ssl

from api.client.call import certificates_for


def test_a_server_by_https_is_checked_with_the_well_known_certificates() -> None:
    found = certificates_for("https://millrace.example.org")
    assert found.verify_mode is ssl.CERT_REQUIRED
    assert found.cert_store_stats()["x509_ca"] > 0


def test_none_are_read_for_http_and_none_would_do() -> None:
    found = certificates_for("http://127.0.0.1:8466")
    assert found.verify_mode is ssl.CERT_REQUIRED
    assert found.cert_store_stats()["x509"] == 0
