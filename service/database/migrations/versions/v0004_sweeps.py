"""Webhooks are sent the states of sweeps, too."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From deliveries about jobs alone, whose ids are shorter."""
    op.create_table(
        "told_of_sweeps",
        sa.Column("sweep", sa.String(64), primary_key=True),
        sa.Column("seq", sa.Integer(), nullable=False),
    )
    with op.batch_alter_table("deliveries") as deliveries:
        deliveries.alter_column("job_id", existing_type=sa.String(16), type_=sa.String(64), existing_nullable=False)
