"""What changes of a job after its submission: notes, and whether it is archived."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From jobs that stay as they were submitted."""
    op.add_column("jobs", sa.Column("notes", sa.String(), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("archived", sa.Boolean(), nullable=False, server_default=sa.false()))
