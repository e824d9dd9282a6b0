"""The control of one run: what its coordinator knows, decides and has done. It can be tested without Ray."""
