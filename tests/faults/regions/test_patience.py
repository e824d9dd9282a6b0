"""What Ray must be told so that it bears with a region that is cut off."""

from trainers.runtime.cluster.patience import needed, too_impatient


def test_a_ray_that_was_told_nothing_gives_up_before_five_minutes() -> None:
    said = too_impatient(300, {})
    assert said is not None
    assert "RAY_grpc_keepalive_timeout_ms is 20000" in said
    assert said.endswith(
        "set RAY_health_check_timeout_ms=60000 RAY_gcs_rpc_server_reconnect_timeout_s=300 "
        "RAY_grpc_keepalive_timeout_ms=300000 RAY_grpc_client_keepalive_timeout_ms=300000"
    )


def test_only_what_is_too_small_is_named() -> None:
    said = too_impatient(100, {"RAY_health_check_timeout_ms": "20000", "RAY_grpc_keepalive_timeout_ms": "99999"})
    assert said is not None
    assert said.endswith("set RAY_gcs_rpc_server_reconnect_timeout_s=100 RAY_grpc_keepalive_timeout_ms=100000")


def test_what_it_asks_for_is_enough() -> None:
    for seconds in (1, 299.5, 600):
        assert too_impatient(seconds, {name: str(value) for name, value in needed(seconds).items()}) is None
    assert too_impatient(15, {}) is None
