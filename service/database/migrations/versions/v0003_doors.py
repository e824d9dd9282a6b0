"""Tokens, webhooks, and their deliveries."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From jobs alone."""
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(8), primary_key=True),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("role", sa.String(8), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("expires", sa.Float()),
        sa.Column("revoked", sa.Float()),
    )
    op.create_index("ix_tokens_user", "tokens", ["user"])
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("url", sa.String(500), nullable=False),
        sa.Column("secret", sa.String(64), nullable=False),
        sa.Column("states", sa.JSON(), nullable=False),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
    )
    op.create_table(
        "told",
        sa.Column("job_id", sa.String(16), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("webhook_id", sa.String(16), sa.ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
        sa.Column("job_id", sa.String(16), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due", sa.Float()),
        sa.Column("delivered", sa.Float()),
        sa.Column("error", sa.String(), nullable=False),
        sa.UniqueConstraint("webhook_id", "job_id", "seq"),
    )
    op.create_index("ix_deliveries_due", "deliveries", ["due"])
