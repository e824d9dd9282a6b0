"""RMSProp."""
