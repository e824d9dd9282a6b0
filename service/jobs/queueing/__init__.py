"""The queue of waiting jobs: what each claims, why it waits, and which running jobs give up workers for it."""
