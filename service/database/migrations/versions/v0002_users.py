"""Whose a job is, from which checkpoint it began, and how long it is kept. A key belongs to its user."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

UNNAMED = {"uq": "uq_%(table_name)s_%(column_0_name)s"}
"""What the constraint is called that the first databases made without a name."""


def upgrade() -> None:
    """From jobs that nobody owns."""
    with op.batch_alter_table("jobs", naming_convention=UNNAMED) as jobs:
        jobs.add_column(sa.Column("user", sa.String(64), nullable=False, server_default="local"))
        jobs.add_column(sa.Column("forked_from", sa.String(64)))
        jobs.add_column(sa.Column("ttl_s", sa.Float()))
        jobs.drop_constraint("uq_jobs_idempotency_key", type_="unique")
        jobs.create_unique_constraint("uq_jobs_user_key", ["user", "idempotency_key"])
        jobs.create_index("ix_jobs_user_state", ["user", "state"])
    op.create_index("ix_labels_key_value", "labels", ["key", "value"])
