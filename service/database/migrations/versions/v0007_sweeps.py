"""Sweeps and their trials, of which only the folders of sweeps knew."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From no tables for them; the service takes in those that it finds in its folder."""
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("archived", sa.Boolean(), nullable=False),
        sa.Column("ledger", sa.JSON(), nullable=False),
    )
    op.create_index("ix_sweeps_created", "sweeps", ["created"])
    op.create_table(
        "sweep_trials",
        sa.Column("sweep", sa.String(64), sa.ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("ledger", sa.JSON(), nullable=False),
    )
