"""Sign-in through an OpenID Connect provider: its keys, its tokens, and who they say comes."""
