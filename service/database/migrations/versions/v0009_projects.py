"""Projects, and of which each job is."""

import time

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From jobs of no project, which become those of the default one: everybody's, without quotas."""
    projects = op.create_table(
        "projects",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("share", sa.Float(), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("quota", sa.JSON(), nullable=False),
    )
    op.bulk_insert(projects, [{"name": "default", "created": time.time(), "share": 1.0, "members": ["*"], "quota": {}}])
    op.add_column("jobs", sa.Column("project", sa.String(64), nullable=False, server_default="default"))
    op.create_index("ix_jobs_project", "jobs", ["project"])
