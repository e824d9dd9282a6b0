"""Jobs, their labels, and the trials of sweeps."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From an empty database."""
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.Column("run_dir", sa.String(), nullable=False),
        sa.Column("idempotency_key", sa.String(200)),
        sa.Column("body_hash", sa.String(64), nullable=False),
        sa.Column("finished", sa.Float()),
        sa.Column("progress", sa.JSON()),
        sa.UniqueConstraint("idempotency_key", name="uq_jobs_idempotency_key"),
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_table(
        "labels",
        sa.Column("job_id", sa.String(16), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("value", sa.String(200), nullable=False),
    )
    op.create_table(
        "swept",
        sa.Column("job_id", sa.String(16), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("sweep", sa.String(32), nullable=False),
    )
    op.create_index("ix_swept_sweep", "swept", ["sweep"])
