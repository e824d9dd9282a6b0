"""Muon: matrices are updated by their orthogonalised momentum, all else by AdamW."""
