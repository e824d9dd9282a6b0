"""The few values in which a list shows a run's curve."""

from hypothesis import given
from hypothesis import strategies as st

from service.curve import MOST, Curve


@given(st.lists(st.floats(allow_nan=False), max_size=300))
def test_values_at_even_distances_from_the_first(values: list[float]) -> None:
    curve = Curve()
    for value in values:
        curve.add(value)
    assert curve.values == values[:: curve.every]
    assert len(curve.values) <= MOST
    assert curve.every == 1 or len(curve.values) > MOST // 2
