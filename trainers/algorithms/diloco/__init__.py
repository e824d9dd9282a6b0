"""DiLoCo: rounds of local steps, and an outer optimizer on what they changed."""
