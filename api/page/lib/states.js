// The states of jobs and sweeps.

export const BUSY = ["STARTING", "RUNNING", "PAUSING", "RECOVERING", "CANCELLING"];
export const ENDED = ["SUCCEEDED", "FAILED", "CANCELLED"];
export const STATES = ["QUEUED", "PAUSED", ...BUSY, ...ENDED];
