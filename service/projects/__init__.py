"""Projects: whose jobs share quotas, and who may submit into them."""
