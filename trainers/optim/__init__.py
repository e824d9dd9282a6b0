"""Update rules and schedules: pure functions and elementwise state."""
