"""Who administers a project."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From projects that only admins of the service change."""
    op.add_column("projects", sa.Column("admins", sa.JSON(), nullable=False, server_default="[]"))
