"""Sessions of browsers beside tokens, and the accounts of a sign-in provider."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """From tokens alone."""
    op.add_column("tokens", sa.Column("kind", sa.String(8), nullable=False, server_default="token"))
    op.add_column("tokens", sa.Column("projects", sa.JSON(), nullable=True))
    op.create_table(
        "accounts",
        sa.Column("user", sa.String(64), primary_key=True),
        sa.Column("issuer", sa.String(500), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
    )
