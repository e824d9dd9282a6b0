"""The parameter server's logic: layout, versions, clocks, staleness, quorum and applied identities. No machines."""
